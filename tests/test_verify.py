"""A run is repeated, and the repetition is judged."""

import dataclasses
import json
import pathlib
import shutil
import signal
import zlib

import numpy as np
import pytest

from sebulba.config import CheckpointConfig, EnvConfig, LearnerConfig
from sebulba.errors import ConfigError
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_OTHER_RESULT,
    EXIT_ROUNDING,
)
from sebulba.processes.children import Children
from sebulba.run import training
from sebulba.storage.checkpoints.manifest import crc32_of_json
from sebulba.storage.checkpoints.restore import read_meta, steps_in
from sebulba.storage.checksums import checksums_of
from sebulba.toolkit.schedules import Schedule
from sebulba.verify import variables_of, verify
from sebulba_agents.config import PPOConfig
from tests.run.runs import make_config
from tests.subprocesses import environment, run_python


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = make_config(path, learner=LearnerConfig(policy_lag=1))
    assert training.train_to_exit_code(config) == 0
    return path


@pytest.fixture
def copy(run_dir, tmp_path):
    return copied(run_dir, tmp_path / "copy")


def copied(run_dir, path):
    shutil.copytree(run_dir, path)
    return path


def edit(path, change):
    process = json.loads((path / "run.json").read_text())
    change(process)
    (path / "run.json").write_text(json.dumps(process))


def replace_in_config(path, old, new):
    text = (path / "config.yaml").read_text()
    assert old in text
    (path / "config.yaml").write_text(text.replace(old, new))


def test_a_run_is_repeated_with_the_same_bits(run_dir, tmp_path, capsys):
    before = sorted(each.name for each in run_dir.rglob("*"))
    assert verify(run_dir, cycles=30, into=tmp_path / "again") == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert "repeating learner cycles 1 to 20, the last with a row" in lines[-3], (
        "there is no row from 21 to 41"
    )
    assert lines[-2].startswith("the same bits up to learner cycle 20: networks")
    assert [row.num_cycles for row in checksums_of(tmp_path / "again")] == [0, 1, 2, 5, 10, 20]
    assert sorted(each.name for each in run_dir.rglob("*")) == before


def test_a_loss_that_is_changed_by_a_millionth_is_another_result(copy, tmp_path, capsys):
    replace_in_config(copy, "learning_rate: 0.1", "learning_rate: 0.1000001")
    assert verify(copy, cycles=3, into=tmp_path / "again") == EXIT_OTHER_RESULT
    out = capsys.readouterr().out
    assert "another result from learner cycle 1 on" in out
    assert "1 of" in out and "networks.weights, by" in out and "updates parted first" in out
    assert "the repetition: " in out


@pytest.mark.slow
def test_the_same_change_on_another_machine_cannot_be_told_from_rounding(copy, tmp_path, capsys):
    replace_in_config(copy, "learning_rate: 0.1", "learning_rate: 0.1000001")
    edit(copy, lambda process: process["cpu"].update(model="Other CPU"))
    assert verify(copy, cycles=3, into=tmp_path / "again") == EXIT_ROUNDING
    out = capsys.readouterr().out
    assert "other machine: CPU: there Other CPU, here " in out
    assert "consistent with rounding up to learner cycle 2: other CPU, and" in out


@pytest.mark.slow
def test_other_code_is_told_first(copy, capsys):
    edit(copy, lambda process: process["code"]["sources"].update(sebulba="0000"))
    assert verify(copy, cycles=1) == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("other code: sebulba: there ")
    assert lines[-1].startswith("the same bits up to learner cycle 1")


@pytest.mark.slow
def test_a_repetition_that_cannot_start_shows_why(copy, capsys):
    edit(copy, lambda process: process["jax"].update(jax_platforms="nowhere"))
    edit(copy, lambda process: process.update(sources={"mine:Task": "/there/mine.py"}))
    assert verify(copy, cycles=1) == EXIT_CONFIG
    err = capsys.readouterr().err
    assert "the repetition ended with exit code" in err
    assert "the run had mine:Task in /there/mine.py" in err


@pytest.mark.slow
def test_a_run_whose_first_networks_are_gone_cannot_be_repeated(copy, capsys):
    replace_in_config(copy, "init_from: null", "init_from: nowhere")
    assert verify(copy, cycles=1) == EXIT_CONFIG
    assert "init_from: " in capsys.readouterr().err


@pytest.mark.slow
def test_another_instruction_set_is_consistent_with_rounding(tmp_path):
    """A machine without AVX-512 is emulated: its run has no record of the flag that does it."""
    variables = environment()
    variables.pop("JAX_DISABLE_MOST_OPTIMIZATIONS")
    narrow = f"{variables.get('XLA_FLAGS', '')} --xla_cpu_max_isa=SSE4_2"
    path = tmp_path / "run"
    arguments = ["impala_catch", "--run.total-learner-cycles", "10", "--run-dir", str(path)]
    trained = run_python(
        "-m", "sebulba.train", *arguments, variables=variables | {"XLA_FLAGS": narrow}
    )
    assert trained.returncode == 0, trained.stderr
    same = run_python("-m", "sebulba.verify", path, variables=variables)
    assert same.returncode == EXIT_DONE, same.stdout + same.stderr

    def forget(process):
        process["xla_flags"] = process["xla_flags"].replace("--xla_cpu_max_isa=SSE4_2", "")
        process["environment"]["XLA_FLAGS"] = process["xla_flags"]
        process["cpu"]["features"] = "sse4_2"

    edit(path, forget)
    other = run_python(
        "-m", "sebulba.verify", path, "--run-dir", tmp_path / "again", variables=variables
    )
    assert other.returncode == EXIT_ROUNDING, other.stdout + other.stderr
    assert "consistent with rounding up to learner cycle 10: other CPU features" in other.stdout


def resumed_from(config):
    """Trains, and trains on from the last checkpoint; returns its learner cycles."""
    assert training.train_to_exit_code(config) == 0
    path = pathlib.Path(config.run_dir)
    (at,) = steps_in(path / "checkpoints")
    run = dataclasses.replace(config.run, total_env_steps=2 * config.run.total_env_steps)
    assert training.train_to_exit_code(dataclasses.replace(config, resume="latest", run=run)) == 0
    return at


def test_each_part_of_a_resumed_run_is_repeated(tmp_path, capsys):
    """At the level restart: environments have begun new episodes, and do so again."""
    path = tmp_path / "run"
    env = EnvConfig(suite="gymnasium", id="CartPole-v1")
    config = make_config(path, env=env, learner=LearnerConfig(policy_lag=1))
    at = resumed_from(config)
    last = checksums_of(path)[-1].num_cycles
    capsys.readouterr()
    assert verify(path, cycles=1) == EXIT_DONE
    out = capsys.readouterr().out
    assert f"resumed at learner cycle {at}: only up to there; {path}@{at} is the part" in out
    before = sorted(each.name for each in path.rglob("*"))
    assert verify(f"{path}@{at}") == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert f"repeating learner cycles {at + 1} to {last}" in lines[0]
    assert lines[-2].startswith(f"the same bits up to learner cycle {last}: ")
    assert sorted(each.name for each in path.rglob("*")) == before
    assert f"expected a learner cycle after {last} with a row" in refusal(f"{path}@latest", capsys)
    assert "expected checkpoint 7 in" in refusal(f"{path}@7", capsys)
    edit(path, lambda process: process.pop("resumed"))
    err = refusal(f"{path}@{at}", capsys)
    assert "a resume begins new episodes, while the run went on with its own" in err


@pytest.mark.slow
@pytest.mark.parametrize("exact", [None, "env_state", "reset"])
def test_a_run_is_repeated_from_a_checkpoint_where_environments_continue(exact, tmp_path, capsys):
    """A resume at the levels exact and exact-reset is the uninterrupted run."""
    path = tmp_path / "run"
    suite = {"suite": "jax", "id": "Catch-v0"} if exact == "env_state" else {"suite": "gymnasium"}
    every = 2 if exact == "reset" else None
    config = make_config(
        path,
        env=EnvConfig(**suite),
        checkpoint=CheckpointConfig(exact_reset_cycles=every),
        learner=LearnerConfig(policy_lag=1),
    )
    at = resumed_from(config)
    edit(path, lambda process: process.pop("resumed"))
    replace_in_config(path, "total_env_steps: 3000", "total_env_steps: 6000")
    capsys.readouterr()
    assert verify(f"{path}@{at}") == (EXIT_DONE if exact else EXIT_CONFIG), capsys.readouterr()


@pytest.mark.slow
def test_a_repetition_from_a_checkpoint_has_the_goals_of_its_resume(tmp_path, capsys):
    """Its learning rates follow `run.total_env_steps`, as those of the resume did."""
    path = tmp_path / "run"
    rate = Schedule(schedule="linear", start=0.1, end=0.0)
    config = make_config(
        path,
        agent=PPOConfig(network="mlp", learning_rate=rate),
        learner=LearnerConfig(policy_lag=1),
    )
    at = resumed_from(config)
    assert verify(f"{path}@{at}") == EXIT_DONE
    replace_in_config(path, "num_epochs: 4", "num_epochs: 5")
    capsys.readouterr()
    assert verify(f"{path}@{at}") == EXIT_OTHER_RESULT
    assert "first other bits after learner cycle" in capsys.readouterr().out


def refusal(path, capsys, **options):
    capsys.readouterr()
    assert verify(path, **options) == EXIT_CONFIG
    return capsys.readouterr().err


def test_what_cannot_be_repeated_is_refused(run_dir, copy, tmp_path, capsys):
    (copy / "checksums.jsonl").rename(copy / "away")
    assert "an earlier version" in refusal(copy, capsys)
    (copy / "away").rename(copy / "checksums.jsonl")
    replace_in_config(copy, "policy_lag: 1", "policy_lag: null")
    assert "a free-running run is not repeatable" in refusal(copy, capsys)
    assert "expected a new directory" in refusal(run_dir, capsys, into=tmp_path)
    assert "expected a run directory with a config.yaml" in refusal(tmp_path / "none", capsys)
    err = refusal(copy.parent, capsys)
    assert err.endswith("got none; name one of the runs in it: copy\n")


def replace_networks(path, change):
    """Changes an array of the last checkpoint, and its checksum in the manifest, too."""
    (step,) = (path / "checkpoints").iterdir()
    with np.load(step / "arrays.npz") as stored:
        arrays = dict(stored)
    change(arrays["learner.networks.weights"])
    np.savez(step / "arrays.npz", **arrays)
    manifest = json.loads((step / "manifest.json").read_text())
    crc32 = f"{zlib.crc32(arrays['learner.networks.weights']):08x}"
    manifest["leaves"]["learner.networks.weights"]["crc32"] = crc32
    del manifest["crc32"]
    manifest["crc32"] = crc32_of_json(manifest)
    (step / "manifest.json").write_text(json.dumps(manifest))


def test_networks_that_were_edited_after_the_run_are_found_before_it_is_repeated(copy, capsys):
    def change(weights):
        weights.flat[0] += 1e-3

    replace_networks(copy, change)
    assert read_meta(copy / "checkpoints", "latest"), "the manifest belongs to the edited array"
    assert verify(copy) == EXIT_CHECKPOINT
    err = capsys.readouterr().err
    assert "arrays.npz: networks.weights: expected CRC32" in err
    assert err.rstrip().endswith("; the file is not what the run saved")
    (step,) = (copy / "checkpoints").iterdir()
    (step / "arrays.npz").write_bytes(b"PK no archive")
    assert verify(copy) == EXIT_CHECKPOINT


@pytest.mark.slow
def test_a_whole_run_has_the_networks_of_its_checkpoint_and_damaged_lines_are_counted(copy, capsys):
    lines = (copy / "checksums.jsonl").read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"env_steps"', '"env_stops"')
    (copy / "checksums.jsonl").write_text("".join(lines))
    assert verify(copy) == EXIT_DONE
    out = capsys.readouterr().out.splitlines()
    assert "checksums.jsonl: damaged lines, which are left out: 1" in out
    assert out[-1].startswith("checkpoint ") and out[-1].endswith(" has these networks")


def test_damaged_files_do_not_change_the_verdict(copy, capsys):
    """A digit of a checksum, an exponent of a sketch, a line of metrics and the summary."""
    lines = (copy / "checksums.jsonl").read_text().splitlines(keepends=True)
    row, other = json.loads(lines[1]), json.loads(lines[2])
    crc32 = row["leaves"]["networks.weights"][0]
    row["leaves"]["networks.weights"][0] = f"{int(crc32, 16) ^ 1:08x}"
    other["leaves"]["networks.weights"][1] = 1e205
    damaged = [json.dumps(each) + "\n" for each in (row, other)]
    (copy / "checksums.jsonl").write_text("".join([lines[0], *damaged, *lines[3:]]))
    with open(copy / "metrics.jsonl", "a") as file:
        file.write("{damaged\n")
    (copy / "summary.json").write_text('{"a')
    assert verify(copy, cycles=5) == EXIT_DONE
    out = capsys.readouterr().out
    assert "checksums.jsonl: damaged lines, which are left out: 1" in out
    assert "the same bits up to learner cycle 5: " in out and "in 2 of 3 rows" in out
    assert "the row of learner cycle 1 is damaged: networks.weights has another checksum" in out


def test_a_repetition_that_ends_early_is_no_verdict_although_a_row_is_damaged(copy, capsys):
    lines = (copy / "checksums.jsonl").read_text().splitlines(keepends=True)
    row, beyond = json.loads(lines[1]), json.loads(lines[-1])
    row["leaves"]["networks.weights"][0] = "00000000"
    beyond["learner_cycles"] += 1
    rows = [lines[0], json.dumps(row) + "\n", *lines[2:], json.dumps(beyond) + "\n"]
    (copy / "checksums.jsonl").write_text("".join(rows))
    assert verify(copy) == EXIT_FAILED
    assert "the repetition ended with exit code 0" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_mapped_seeds_is_repeated_with_its_seeds(tmp_path, capsys):
    """Alone, a seed of such a run has other bits."""
    flags = ["--devices.actor", "[0]", "--devices.learner", "[0]", "--actor.threads-per-device=1"]
    flags += ["--run.mode=anakin", "--run.seeds=mapped", "--run.total-learner-cycles=20"]
    path = tmp_path / "runs"
    trained = run_python(
        "-m", "sebulba.train", "impala_catch", *flags, "--seeds=0..2", "--run-dir", path
    )
    assert trained.returncode == 0, trained.stderr
    assert verify(path / "seed-1") == EXIT_DONE, capsys.readouterr()
    assert "with the seeds of its program: 0, 1, 2" in capsys.readouterr().out
    edit(path / "seed-1", lambda process: process.update(mapped_seeds=None))
    assert "got those of its last resume" in refusal(path / "seed-1", capsys)


@pytest.mark.slow
def test_a_stranger_verifies_from_another_directory_with_another_home(run_of, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    variables = environment() | {"HOME": str(tmp_path / "home")}
    root = str(pathlib.Path(__file__).parents[1])
    variables["PYTHONPATH"] = f"{root}:{root}/agents"
    # With evaluation during training, which the repetition leaves out.
    again = run_python(
        "-m",
        "sebulba.verify",
        run_of("impala evaluated"),
        variables=variables,
        cwd=tmp_path / "work",
    )
    assert again.returncode == EXIT_DONE, again.stdout + again.stderr
    assert not any((tmp_path / "work").iterdir())


def test_a_resumed_run_is_repeated_up_to_its_resume(copy, capsys):
    edit(copy, lambda process: process.update(resumed=[{}, {"at": 0, "level": "restart"}]))
    assert "expected a learner cycle with a row" in refusal(copy, capsys)


def test_a_run_that_was_resumed_twice_is_repeated_up_to_the_earlier_checkpoint(copy, capsys):
    later, earlier = {"at": 20, "level": "exact"}, {"at": 0, "level": "restart"}
    edit(copy, lambda process: process.update(resumed=[later, {}, earlier, later]))
    assert "expected a learner cycle with a row" in refusal(copy, capsys)


def test_the_repetition_has_the_variables_of_the_run():
    process = {
        "environment": {
            "XLA_FLAGS": "--a",
            "JAX_COMPILATION_CACHE_DIR": "/old",
            "PATH": "/bad",
            "LIBTPU_INIT_ARGS": "--b",
        },
        "jax": {
            "jax_platforms": "cpu",
            "jax_enable_x64": True,
            "jax_num_cpu_devices": -1,
            "jax_default_matmul_precision": None,
        },
        "threads": 3,
        "lapack_threads": 2,
    }
    own = {"PATH": "/bin", "XLA_FLAGS": "--own", "JAX_NUM_CPU_DEVICES": "4", "PJRT_NPROC": "1"}
    own["OMP_NUM_THREADS"] = "1"
    assert variables_of(process, own) == {
        "PATH": "/bin",
        "XLA_FLAGS": "--a",
        "LIBTPU_INIT_ARGS": "--b",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "PJRT_NPROC": "3",
        "OPENBLAS_NUM_THREADS": "2",
        "OMP_NUM_THREADS": "1",
    }
    with pytest.raises(ConfigError, match="null byte in LIBTPU_INIT_ARGS"):
        variables_of({"environment": {"LIBTPU_INIT_ARGS": "a\0b"}}, {})


@pytest.mark.slow
def test_foreign_text_forges_no_line(copy, capsys):
    forged = "\x1b[31mRED\nthe same bits up to learner cycle 70"
    edit(copy, lambda process: process["cpu"].update(model=forged))
    assert verify(copy, cycles=1) == EXIT_DONE
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\nthe same bits up to learner cycle 70" not in out


def test_the_file_of_a_module_that_is_not_found_here_is_named(copy, capsys):
    edit(copy, lambda process: process.update(sources={"mine:Task": "/there/mine.py"}))
    replace_in_config(copy, "policy_lag: 1", "policy_lag: null")
    err = refusal(copy, capsys)
    assert "the run had mine:Task in /there/mine.py; PYTHONPATH=/there finds it" in err


def test_a_signal_ends_the_repetition_without_a_verdict(run_dir, monkeypatch, capsys):
    start = Children.start

    def start_and_stop(*args, **kwargs):
        process = start(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(Children, "start", start_and_stop)
    assert verify(run_dir) == 128 + signal.SIGINT
    assert capsys.readouterr().err.endswith("SIGINT ended the repetition: there is no verdict\n")
