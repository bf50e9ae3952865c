"""Sweeps: their runs, what is trained of them, and their results."""

import json
import os

import pytest

from sebulba.config.loading import load_config, to_yaml
from sebulba.envs.task_defaults import with_task_defaults
from sebulba.errors import ConfigError
from sebulba.evaluation.opponents import with_exact_opponent
from sebulba.processes import runs
from sebulba.processes.grid import parse_sweep, split_values, train_points
from sebulba.sweep import summarize_sweep, sweep

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
    assert sweep([*arguments, "--run-dir", str(tmp_path / "sweep")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_a_directory_of_one_run_is_refused(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("")
    assert sweep([CATCH, "--seeds", "0..1", "--run-dir", str(tmp_path)]) == 2
    assert "which is that of one run" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made_ends_with_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert sweep([CATCH, "--seeds", "0..1", "--run-dir", str(tmp_path / "file")]) == 2
    assert "run_dir: cannot create" in capsys.readouterr().err


def test_a_task_of_a_slurm_array_is_one_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    argv = [CATCH, "--seeds", "0..1", "--run-dir", str(tmp_path / "sweep")]
    assert sweep(argv) == 2
    assert "sbatch --array=0-1" in capsys.readouterr().err


def end_run(point, final, *, status="done"):
    point.directory.mkdir(parents=True, exist_ok=True)
    summary = {"status": status, "final_episode_return_mean": final, "env_steps": 100}
    (point.directory / "summary.json").write_text(json.dumps(summary))


class FakeProcess:
    """A training process that ends at once and leaves a summary."""

    def __init__(self, argv, code):
        directory = next(each for each in argv if each.startswith("--run-dir="))
        self.argv, self.returncode, self._code = argv, None, code
        self._directory = directory.removeprefix("--run-dir=")

    def poll(self):
        self.returncode = self._code
        return self._code


@pytest.fixture
def started(monkeypatch):
    """Replaces training processes; returns the command lines of those that were started."""
    command_lines = []

    def start(self, argv, *, variables, output):
        command_lines.append(list(argv))
        return FakeProcess(argv, 3 if "--seed=1" in argv else 0)

    monkeypatch.setattr(runs.Children, "start", start)
    monkeypatch.setattr(runs, "_POLL_S", 0.0)
    return command_lines


def test_a_sweep_skips_what_is_done_and_resumes_what_was_interrupted(tmp_path, started):
    argv = [CATCH, "--seeds", "0..3", "--jobs", "2", "--run-dir", str(tmp_path)]
    parsed = parse_sweep(argv)
    end_run(parsed.points[0], 0.5)
    (parsed.points[2].directory / "checkpoints" / "7").mkdir(parents=True)
    assert train_points(parsed, parsed.points) == 3  # of seed 1; the others still ran
    seeds = [next(each for each in line if each.startswith("--seed=")) for line in started]
    assert seeds == ["--seed=1", "--seed=2", "--seed=3"]
    assert ["--resume=latest" in line for line in started] == [False, True, False]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen")
def test_runs_at_a_time_share_the_cores_and_a_single_one_has_all(tmp_path, monkeypatch):
    used, every = [], os.sched_getaffinity(0)
    cores = sorted(every)
    lasting = {"--seed=0": 1, "--seed=1": 3, "--seed=2": 1, "--seed=3": 1}  # polls

    class Process(FakeProcess):
        def poll(self):
            lasting[self.seed] -= 1
            self.returncode = 0 if lasting[self.seed] <= 0 else None
            return self.returncode

    def start(self, argv, *, variables, output):
        process = Process(argv, 0)
        process.seed = next(each for each in argv if each.startswith("--seed="))
        used.append(os.sched_getaffinity(0))
        return process

    monkeypatch.setattr(runs.Children, "start", start)
    monkeypatch.setattr(runs, "_POLL_S", 0.0)
    argv = [CATCH, "--seeds", "0..3", "--run-dir", str(tmp_path)]
    parsed = parse_sweep([*argv, "--jobs", "2"])
    assert train_points(parsed, parsed.points) == 0
    half = max(1, len(cores) // 2)
    first, second = set(cores[:half]), set(cores[half : 2 * half]) or set(cores[:half])
    # Seed 1 still runs while 0, 2 and 3 take turns with the other part.
    assert used == [first, second, first, first]
    used.clear()
    parsed = parse_sweep(argv)
    lasting |= dict.fromkeys(lasting, 1)
    assert train_points(parsed, parsed.points) == 0
    assert used == [every] * 4
    assert os.sched_getaffinity(0) == every


def test_results_are_over_the_seeds_that_are_done_the_best_first(tmp_path):
    argv = [CATCH, "--agent.learning-rate", "1e-3,3e-4", "--seeds", "0..4"]
    parsed = parse_sweep([*argv, "--run-dir", str(tmp_path)])
    for point, final in zip(parsed.points[:5], [0.0, 0.1, 0.2, 0.3, 0.4], strict=True):
        end_run(point, final)
    end_run(parsed.points[5], 1.0)
    end_run(parsed.points[6], 9.0, status="failed")
    end_run(parsed.points[7], 1.2)
    best, other = summarize_sweep(parsed)
    assert best["settings"] == {"agent.learning-rate": "3e-4"}
    assert (best["done"], best["returns"], best["iqm_low"]) == (2, [1.0, 1.2], None)
    assert (other["done"], other["iqm"]) == (5, pytest.approx(0.2))
    assert 0.0 <= other["iqm_low"] < 0.2 < other["iqm_high"] <= 0.4


@pytest.mark.slow
def test_a_sweep_trains_and_compares(tmp_path, capsys):
    argv = [CATCH, "--agent.learning-rate", "1e-3,1e-9", "--seeds", "0..1", "--jobs", "2"]
    argv += ["--run.total-env-steps", "40000", "--run-dir", str(tmp_path / "sweep")]
    assert sweep(argv) == 0
    best, worst = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert best["settings"] == {"agent.learning-rate": "1e-3"}
    assert best["iqm"] > worst["iqm"]
    assert (tmp_path / "sweep" / "sweep.png").stat().st_size > 10_000
    capsys.readouterr()
    assert sweep(argv) == 0
    assert "4 of 4 runs are done already" in capsys.readouterr().err


def test_an_earlier_run_against_the_same_run_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").touch()
    monkeypatch.setattr(
        "sebulba.evaluation.opponents.exact_source",
        lambda source, key: f"{tmp_path / source}@5",
    )
    arguments = ["ppo_kuhn_poker", "--run-dir", str(tmp_path / "sweep"), "--agent.clip", "0.1,0.2"]
    arguments += ["--env.options.opponent", "other"]
    for point in parse_sweep(arguments).points:
        point.directory.mkdir(parents=True)
        config = with_exact_opponent(load_config("ppo_kuhn_poker", list(point.argv[1:])))
        (point.directory / "config.yaml").write_text(to_yaml(config))
    assert len(parse_sweep(arguments).points) == 2
    with pytest.raises(ConfigError, match=r"holds a run with another env.options"):
        parse_sweep([*arguments, "--env.options.opponent", "another"])


def test_an_earlier_run_with_the_defaults_of_its_task_is_the_same_run(tmp_path):
    path = tmp_path / "three_lines.yaml"
    path.write_text("env: {id: Pendulum-v1}\nagent: {name: ppo}\nrun: {total_env_steps: 1_000}\n")
    arguments = [str(path), "--run-dir", str(tmp_path / "sweep"), "--agent.clip", "0.1,0.2"]
    for point in parse_sweep(arguments).points:
        point.directory.mkdir(parents=True)
        config = with_task_defaults(load_config(path, list(point.argv[1:]))).config
        (point.directory / "config.yaml").write_text(to_yaml(config))
    assert len(parse_sweep(arguments).points) == 2
    with pytest.raises(ConfigError, match=r"holds a run with another actor.num_envs\."):
        parse_sweep([*arguments, "--actor.num-envs", "8"])
