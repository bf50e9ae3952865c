import pytest

from sebulba.config.loading import load_config, to_yaml
from sebulba.errors import ConfigError
from sebulba.tools.sweep.command import sweep
from sebulba.tools.sweep.points import parse_sweep, split_values

CATCH = "configs/impala_catch.yaml"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3", ["1e-3"]),
        ("1e-3, 3e-4", ["1e-3", "3e-4"]),
        ("[64, 64],[32]", ["[64, 64]", "[32]"]),
        ("{schedule: linear, start: 1},0.5", ["{schedule: linear, start: 1}", "0.5"]),
        ("'a,b',c", ["'a,b'", "c"]),
    ],
)
def test_commas_inside_of_brackets_and_quotes_separate_no_values(text, values):
    assert split_values(text) == values


def test_a_sweep_is_every_combination_with_every_seed(tmp_path):
    swept = ["--agent.learning-rate", "1e-3,3e-4", "--agent.hidden-sizes", "[8],[8, 8]"]
    fixed = ["--run.total-env-steps", "100", "--seeds", "0..2", "--jobs", "3"]
    parsed = parse_sweep([CATCH, *swept, *fixed, "--run-dir", str(tmp_path)])
    assert parsed.num_jobs == 3
    assert len({point.directory for point in parsed.points}) == len(parsed.points) == 12
    configs = [load_config(point.argv[0], point.argv[1:]) for point in parsed.points]
    values = {(c.agent.learning_rate, c.agent.hidden_sizes, c.seed) for c in configs}
    rates, sizes = (1e-3, 3e-4), ((8,), (8, 8))
    assert values == {(rate, size, seed) for rate in rates for size in sizes for seed in range(3)}
    assert {(c.run.total_env_steps, c.run_dir.startswith(str(tmp_path))) for c in configs} == {
        (100, True)
    }


def test_an_earlier_run_with_another_config_is_not_mistaken_for_a_run_of_the_sweep(tmp_path):
    argv = [CATCH, "--agent.learning-rate", "1e-3,3e-4", "--run-dir", str(tmp_path)]
    point = parse_sweep(argv).points[0]
    point.directory.mkdir()
    config = load_config(point.argv[0], point.argv[1:])
    (point.directory / "config.yaml").write_text(to_yaml(config))
    assert parse_sweep(argv).points[0] == point
    with pytest.raises(ConfigError, match=r"another run\.total_env_steps"):
        parse_sweep([*argv, "--run.total-env-steps", "17"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one config"),
        ([CATCH, "--agent.learning-rate", "1e-3,many"], "agent.learning-rate"),
        ([CATCH, "--agent.learning-rate", "1e-3,1e-3"], "every combination of values once"),
        ([CATCH, "--resume", "latest"], "--resume"),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_anything_is_trained(
    arguments, message, tmp_path, capsys
):
    assert sweep([*arguments, "--run-dir", str(tmp_path / "sweep")], usage="usage") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_a_task_of_a_slurm_array_is_one_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    argv = [CATCH, "--seeds", "0..1", "--run-dir", str(tmp_path / "sweep")]
    assert sweep(argv, usage="usage") == 2
    assert "sbatch --array=0-1" in capsys.readouterr().err
