"""Environments that fail: what is told, what is kept, and what goes on."""

import json
import multiprocessing
import re

import numpy as np
import pytest

from sebulba.config import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearnerConfig,
    RunConfig,
)
from sebulba.envs import make_environment
from sebulba.envs.base import EnvironmentFault, EnvironmentTimeout
from sebulba.envs.gymnasium_workers import wait_for_answers
from sebulba.run import training
from sebulba.storage.checkpoints.restore import steps_in
from sebulba.toolkit.prng import environment_seed
from tests.run.resuming import rows_in
from tests.subprocesses import run_python
from tests.toys import ToyConfig

NUM_ENVS, LENGTH = 4, 5
ENV_2_OF_ACTOR_1 = environment_seed(0, "actor", 1) + 2


@pytest.fixture(autouse=True)
def nothing_is_left_running(no_thread_is_left):
    yield
    assert multiprocessing.active_children() == []


def faulty(fault, *, mode="sync", seeds=(ENV_2_OF_ACTOR_1,), at_step=22):
    """By default one environment fails, in its 22nd step: in cycle 4, after 3 whole episodes."""
    options = {"fault": fault, "seeds": list(seeds), "at_step": at_step}
    return EnvConfig(
        suite="gymnasium",
        id="tests.faults.environments:Faulty-v0",
        options=options | {"vectorization_mode": mode},
    )


def faulty_task(fault, chance=1.0, at_step=3):
    return EnvConfig(
        suite="jax",
        id="tests.faults.tasks:FaultyTask",
        options={"fault": fault, "chance": chance, "at_step": at_step},
    )


def make_config(
    env, run_dir, *, on_env_error="fail", max_env_restarts=3, run_mode="threads", **actor
):
    return Config(
        env=env,
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(
            threads_per_device=2,
            num_envs=NUM_ENVS,
            trajectory_length=LENGTH,
            on_env_error=on_env_error,
            max_env_restarts=max_env_restarts,
            **actor,
        ),
        learner=LearnerConfig(policy_lag=0),
        run=RunConfig(total_env_steps=400, log_interval_env_steps=40, mode=run_mode),
        checkpoint=CheckpointConfig(interval_s=None),
        agent=ToyConfig(),
        run_dir=str(run_dir),
    )


def summary_of(run_dir):
    summary = json.loads((run_dir / "summary.json").read_text())
    for account in summary["ledger"]:
        stages = sum(value for key, value in account.items() if key != "acted")
        assert account["acted"] == stages
    return summary


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("step", "EnvironmentFault: env 2: step raised ArithmeticError: the pole is off"),
        ("nan", "EnvironmentDataError: observation[1] of env 2 is nan in row"),
        ("infinite reward", "EnvironmentDataError: reward of env 2 is inf in row"),
        ("shape", "observation of env 2: expected float32[3], got float32[1]"),
        ("dtype", "observation of env 2: expected float32[3], got complex64[3]"),
    ],
)
def test_fault_of_an_environment_ends_the_run_with_its_place(fault, message, tmp_path, capsys):
    assert training.train_to_exit_code(make_config(faulty(fault), tmp_path / "run")) == 3
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert message in last
    assert "This happened in actor 1, cycle 4." in last
    assert ("Traceback" in error and 'ArithmeticError("the pole is off")' in error) or (
        fault != "step"
    ), "of the environment's own code"
    (step,) = steps_in(tmp_path / "run/checkpoints")
    assert f"The last checkpoint is of cycle {step}" in last
    summary = summary_of(tmp_path / "run")
    assert summary["status"] == "failed"
    assert summary["env_restarts"] == 0
    assert rows_in(tmp_path / "run")[-1]["env_steps"] <= summary["env_steps"]
    # Nothing of the trajectory with the fault was learned from.
    learned, acted = (summary["ledger"][1][key] for key in ("learned", "acted"))
    assert learned <= 4 * LENGTH * NUM_ENVS < acted + NUM_ENVS * LENGTH


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "constructor",
            r"its constructor raised RuntimeError: no such machine \({}\) – This",
        ),
        (
            "reset",
            r"env 2: reset raised RuntimeError: no way back \({}\) – This happened in",
        ),
    ],
)
def test_environment_that_does_not_start_ends_the_run(fault, message, tmp_path, capsys):
    assert training.train_to_exit_code(make_config(faulty(fault), tmp_path / "run")) == 3
    line = r"environments\.py:\d+: raise RuntimeError\(.*\)"
    assert re.search(message.format(line), capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (faulty_task("nan", at_step=6), r"observation[0] of env 0 is nan in row 1 of the traj"),
        pytest.param(
            faulty_task("step", at_step=6),
            "EnvironmentFault: step raised ArithmeticError: the pole is off",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nan", "step"],
)
def test_fault_inside_jit_ends_the_run_with_its_place(env, message, tmp_path, capsys):
    assert training.train_to_exit_code(make_config(env, tmp_path / "run")) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert "This happened in actor" in last
    assert ", cycle 1." in last


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's, with the worker's traceback
@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_restart_goes_on_with_other_episodes_and_counts_what_is_lost(mode, tmp_path, capsys):
    config = make_config(
        faulty("step", mode=mode), tmp_path, on_env_error="restart", run_mode="serial"
    )
    assert training.train_to_exit_code(config) == 0
    error = capsys.readouterr().err
    (warning,) = [line for line in error.splitlines() if "recreating" in line]
    assert "actor 1, cycle 4: EnvironmentFault: env 2: step raised ArithmeticError" in warning
    assert "restart 1 of 3, actor.max_env_restarts" in warning
    summary = summary_of(tmp_path)
    assert summary["env_restarts"] == 1
    # The row before the cycle is each environment's 20th; its third episode ends with the 24th.
    assert summary["episodes_cut"] == NUM_ENVS
    discarded = int(warning.partition("Discarding ")[2].split()[0])
    assert 0 < discarded < LENGTH * NUM_ENVS
    # In one thread, no trajectory is under way when the run ends.
    assert summary["ledger"][1]["discarded"] == discarded
    assert [row["env_restarts"] for row in rows_in(tmp_path)] == sorted(
        row["env_restarts"] for row in rows_in(tmp_path)
    )
    assert rows_in(tmp_path)[-1]["env_restarts"] == 1


def test_restarts_inside_jit_go_on(tmp_path):
    config = make_config(
        faulty_task("nan", chance=0.02), tmp_path, on_env_error="restart", max_env_restarts=1000
    )
    assert training.train_to_exit_code(config) == 0
    summary = summary_of(tmp_path)
    assert summary["env_restarts"] > 0
    assert summary["env_steps"] >= 400


def test_the_last_fault_of_the_budget_ends_the_run(tmp_path, capsys):
    env = faulty_task("nan", at_step=6)
    config = make_config(env, tmp_path, on_env_error="restart", max_env_restarts=2)
    assert training.train_to_exit_code(config) == 3
    error = capsys.readouterr().err
    assert error.count("recreating the environments (restart 2 of 2") >= 1
    assert "restart 3" not in error
    assert "All 2 restarts are used (actor.max_env_restarts)." in error
    assert "EnvironmentDataError" in error.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's, with the worker's traceback
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("killed", EnvironmentFault, r"env 1: its worker process ended with code -9"),
        ("hang", EnvironmentTimeout, r"env 1: no answer within 1 s \(actor\.env_timeout_s\)"),
        pytest.param(
            "step",
            EnvironmentFault,
            r"env 1: step raised ArithmeticError: the pole is off",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "shape",
            EnvironmentFault,
            r"observation of env 1: expected float32\[3\], got float32\[1\]",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_worker_process_that_fails_is_named_and_ends_with_the_others(fault, error, message):
    environment = make_environment(
        faulty(fault, mode="async", seeds=[11], at_step=2), num_envs=2, seed=10
    )
    environment.reset()
    environment.step(np.zeros(2, np.int32))
    processes = environment._vector_env.processes
    assert {type(process).__name__ for process in processes} == {"SpawnProcess"}, "no fork"
    environment.timeout_s = 1.0 if fault == "hang" else 60.0
    with pytest.raises(error, match=message):
        environment.step(np.zeros(2, np.int32))
    environment.close()
    assert not any(process.is_alive() for process in processes)


def test_time_of_a_stopped_process_is_not_counted_for_its_workers():
    pipe, worker = multiprocessing.Pipe()
    times = [0.0]

    def now():
        if len(times) == 3:  # before the second wait
            worker.send("answer")
        times.append(times[-1] + 1000.0)
        return times[-1]

    wait_for_answers([pipe, None], 2.0, now=now)
    assert pipe.recv() == "answer"
    with pytest.raises(multiprocessing.TimeoutError, match=r"no answer within 0\.01 s"):
        wait_for_answers([pipe, None], 0.01, now=now)


@pytest.mark.slow
def test_process_of_a_run_whose_worker_is_killed_ends_with_code_3(tmp_path):
    run_dir = tmp_path / "run"
    path = tmp_path / "config.yaml"
    path.write_text(
        "env: {suite: gymnasium, id: 'tests.faults.environments:Faulty-v0', options: {fault:"
        f" killed, seeds: [{ENV_2_OF_ACTOR_1}], at_step: 22, vectorization_mode: async}}}}\n"
        "devices: {actor: [0], learner: [0]}\n"
        "actor: {num_envs: 4, trajectory_length: 5}\n"
        "agent: {name: 'tests.toys:ToyAgent'}\n"
    )
    process = run_python("-m", "sebulba.train", path, "--run-dir", run_dir)
    assert process.returncode == 3, process.stderr
    last = process.stderr.splitlines()[-1]
    assert "env 2: its worker process ended with code -9" in last
    assert "This happened in actor 1, cycle 4." in last
    assert steps_in(run_dir / "checkpoints") != []
