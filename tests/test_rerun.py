"""A learner cycle of a repeatable run, again."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Discrete

from sebulba.config.loading import to_yaml
from sebulba.rerun import rerun
from sebulba.run import training
from tests.disturbances import before_learning_from
from tests.faults.runs import make_config
from tests.toys import ToyAgent

BAD_REWARD = 1e6


class SpoiledTask:
    """Pays far too much, rarely."""

    observation = jax.ShapeDtypeStruct((3,), np.float32)
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(3)

    def step(self, state, action, key):
        reward = jnp.where(jax.random.uniform(key) < 0.02, BAD_REWARD, 1.0)
        return state + 1, jnp.ones(3), reward, state == 6, jnp.zeros((), bool)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = make_config(
        path,
        env={"id": f"{__name__}:SpoiledTask"},
        learner={"policy_lag": 1},
        checkpoint={"interval_s": 0, "keep": 100},
    )
    batches = []

    def remember(trajectories):
        batches.append(np.asarray(trajectories[0].env_steps.reward))

    with pytest.MonkeyPatch.context() as patch:
        before_learning_from(remember, setattr=patch.setattr)
        assert training.train_to_exit_code(config) == 0
    return path, batches


def test_the_batch_that_holds_a_bad_value_is_shown_and_written(run_dir, tmp_path, capsys):
    path, batches = run_dir
    bad = max(cycle for cycle, rewards in enumerate(batches) if rewards.max() == BAD_REWARD)
    assert bad > 1
    assert rerun(path, to_cycle=bad, dump=tmp_path / "batch.npz") == 0
    row, env = np.unravel_index(batches[bad].argmax(), batches[bad].shape)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "reward" in each]
    assert "1e+06" in line and f"row {row}, env {env}" in line
    with np.load(tmp_path / "batch.npz") as batch:
        (name,) = [name for name in batch if name.endswith("reward")]
        np.testing.assert_array_equal(batch[name], batches[bad])


def test_a_rerun_from_the_start_gives_the_same_batch(run_dir, tmp_path):
    path, batches = run_dir
    (tmp_path / "config.yaml").write_text((path / "config.yaml").read_text())
    assert rerun(tmp_path, to_cycle=5, dump=tmp_path / "batch") == 0
    with np.load(tmp_path / "batch") as batch:
        (name,) = [name for name in batch if name.endswith("reward")]
        np.testing.assert_array_equal(batch[name], batches[5])


def test_other_kernels_of_a_gpu_than_the_runs_are_told(run_dir, tmp_path, capsys, monkeypatch):
    path, _ = run_dir
    (tmp_path / "config.yaml").write_text((path / "config.yaml").read_text())
    (tmp_path / "run.json").write_text('{"kernels": "fastest"}')
    monkeypatch.setattr("sebulba.storage.run_dir.kernels_of_gpu", lambda: "repeatable")
    assert rerun(tmp_path, to_cycle=0) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "the run may have had other bits: kernels (there fastest, here repeatable)" in line


def test_what_a_rerun_has_otherwise_than_the_run_is_told(run_dir, tmp_path, capsys):
    path, _ = run_dir
    (tmp_path / "config.yaml").write_text((path / "config.yaml").read_text())
    process = json.loads((path / "run.json").read_text())
    assert rerun(path, to_cycle=0) == 0
    assert capsys.readouterr().err == ""
    process["code"]["sources"]["sebulba"] = "0000"
    process["mapped_seeds"] = [0, 1]
    (tmp_path / "run.json").write_text(json.dumps(process))
    assert rerun(tmp_path, to_cycle=0) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "seeds of its program (there [0, 1], here []), sebulba (there 0000 (" in line


def test_a_batch_after_a_resume_with_new_episodes_is_refused(run_dir, tmp_path, capsys):
    path, batches = run_dir
    (tmp_path / "config.yaml").write_text((path / "config.yaml").read_text())
    process = json.loads((path / "run.json").read_text())

    def resumed(*starts):
        resumes = [{**process, "at": at, "level": level} for at, level in starts]
        (tmp_path / "run.json").write_text(json.dumps(process | {"resumed": resumes}))
        capsys.readouterr()

    resumed((6, "exact"), (4, "restart"))
    assert rerun(tmp_path, to_cycle=3) == 0
    assert rerun(tmp_path, to_cycle=4) == 2
    assert "expected less than 4, at which the run was resumed with new episodes" in (
        capsys.readouterr().err
    )
    resumed((4, "restart"), (2, "exact"))
    assert rerun(tmp_path, to_cycle=4) == 0, "the second replaces the first"
    assert rerun(tmp_path, to_cycle=len(batches) + 9) == 2
    assert "a resume with a later goal cannot be repeated" in capsys.readouterr().err


def test_what_cannot_be_repeated_is_refused(run_dir, tmp_path, capsys):
    path, batches = run_dir
    assert rerun(path, to_cycle=10**6) == 2
    assert f"expected at most {len(batches)}" in capsys.readouterr().err
    assert rerun(path, to_cycle=1, dump=tmp_path / "none" / "batch.npz") == 2
    assert "--dump: expected a file in a directory that is writable" in capsys.readouterr().err
    text = (path / "config.yaml").read_text().replace("policy_lag: 1", "policy_lag: null")
    (tmp_path / "config.yaml").write_text(text)
    assert rerun(tmp_path, to_cycle=1) == 2
    assert "a free-running run is not repeatable" in capsys.readouterr().err


class EmptyExtrasAgent(ToyAgent):
    """Stores an array without elements in each row."""

    def act(self, networks, actor_state, env_step, *, greedy):
        action, extras, state = super().act(networks, actor_state, env_step, greedy=greedy)
        return action, {**extras, "nothing": jnp.zeros((len(action), 0))}, state

    def init_experience(self, networks, num_envs):
        experience = super().init_experience(networks, num_envs)
        trajectory = experience.trajectory
        nothing = jnp.zeros((*trajectory.action.shape[:2], 0))
        extras = {**trajectory.extras, "nothing": nothing}
        trajectory = dataclasses.replace(trajectory, extras=extras)
        return dataclasses.replace(experience, trajectory=trajectory)


def test_a_batch_is_shown_without_leaves_that_have_no_elements(tmp_path, capsys):
    config = make_config(tmp_path, agent=f"{__name__}:EmptyExtrasAgent")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert rerun(tmp_path, to_cycle=0) == 0
    shown = capsys.readouterr().out
    assert "extras.logits" in shown and "extras.nothing" not in shown
