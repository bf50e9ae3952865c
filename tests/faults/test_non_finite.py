"""Updates whose loss or gradients are not finite."""

import dataclasses
import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.envs import make_environment
from sebulba.evaluation import stored
from sebulba.rerun import rerun
from sebulba.ring import make
from sebulba.run import training
from sebulba.storage.checkpoints.restore import steps_in
from tests import ring_parts
from tests.faults import breaking
from tests.faults.breaking import NAN_AT, NanAgent
from tests.faults.runs import BREAKING, last_line, make_config, summary_of
from tests.ring.test_learner import NUM_ENVS, make_item
from tests.ring_parts import NonFiniteError, published, update, update_step
from tests.rings import close, make_ring, resume
from tests.run.resuming import rows_in
from tests.toys import ToyConfig, toy_run_spec

NAN_AGENT = f"{BREAKING}:NanAgent"


def make_learner(bad_steps, *, limit=1, num_devices=1, updates_per_cycle=1, agent_class=NanAgent):
    learners = LearnerDevices(jax.devices()[:num_devices])
    run_spec = toy_run_spec(num_envs=NUM_ENVS, num_learner_devices=num_devices)
    agent = agent_class(ToyConfig(updates_per_cycle=updates_per_cycle), run_spec)
    agent.bad_steps = bad_steps
    settings = {"on_non_finite": "skip", "max_non_finite_updates": limit}
    learner = ring_parts.make_learner(agent, learners, num_envs=NUM_ENVS, seed=1, **settings)
    return learner, learners


def run_cycles(learner, learners, cycles):
    for cycle in cycles:
        update(learner, [make_item(learners, cycle)])
        learner.check()


def weights_of(learner):
    return np.asarray(published(learner)["weights"])


@pytest.mark.parametrize("num_devices", [1, 4])
def test_update_that_is_not_finite_is_skipped_and_counted(num_devices):
    learner, learners = make_learner((1,), limit=2, num_devices=num_devices)
    run_cycles(learner, learners, range(1))
    before = weights_of(learner)
    run_cycles(learner, learners, range(1, 2))
    np.testing.assert_array_equal(weights_of(learner), before)
    run_cycles(learner, learners, range(2, 3))
    assert not np.array_equal(weights_of(learner), before)
    assert np.isfinite(weights_of(learner)).all()
    assert (learner.num_updates, int(learner.state.step)) == (3, 3)
    assert learner.num_non_finite_updates == 1
    assert int(learner.state.non_finite.in_a_row) == 0


def test_updates_of_a_cycle_after_the_last_straw_change_nothing():
    """The host sees only at the cycle's end what the devices decided in its middle."""
    learner, learners = make_learner((2,), updates_per_cycle=5)
    whole, whole_learners = make_learner((), updates_per_cycle=2)
    run_cycles(whole, whole_learners, range(1))
    metrics = update(learner, [make_item(learners, 0)])
    with pytest.raises(NonFiniteError, match=r"update 2 \(learner cycle 0\) are not finite"):
        learner.check()
    chex.assert_trees_all_equal(learner.state.networks, whole.state.networks)
    chex.assert_trees_all_equal(learner.state.opt_state, whole.state.opt_state)
    chex.assert_trees_all_equal(learner.state.experience, whole.state.experience)
    assert metrics[0]["loss"].shape == (2,)
    assert learner.num_updates == int(learner.state.step) == 2


def test_as_many_in_a_row_as_allowed_end_the_run_and_fewer_do_not():
    learner, learners = make_learner((1, 2, 4, 5, 6), limit=3)
    run_cycles(learner, learners, range(6))
    with pytest.raises(NonFiniteError, match=r"update 6 .* the last of 3 in a row, are not"):
        run_cycles(learner, learners, range(6, 7))
    assert learner.num_non_finite_updates == 5


class PriorityAgent(NanAgent):
    """Its loss changes a part of the experience, as priorities are changed."""

    def loss(self, networks, experience, key, clock):
        loss, (experience, metrics) = super().loss(networks, experience, key, clock)
        count = experience.final_count + jnp.where(jnp.isfinite(loss), 1, 100)
        return loss, (dataclasses.replace(experience, final_count=count), metrics)


def test_experience_is_as_before_the_loss_that_is_not_finite():
    learner, learners = make_learner((1,), limit=9, updates_per_cycle=3, agent_class=PriorityAgent)
    before = np.arange(NUM_ENVS)
    run_cycles(learner, learners, range(1))
    np.testing.assert_array_equal(learner.state.experience.final_count[0], before + 2)


def test_leaves_that_the_loss_passes_through_are_not_copied():
    learner, learners = make_learner(())
    update(learner, [make_item(learners, 0)])
    jaxpr = jax.make_jaxpr(update_step(learner))(learner.state)
    reward = learner.state.experience.trajectory.env_steps.reward
    selected = str(jaxpr).count("select_n")
    shape = f"f32[{','.join(map(str, reward.shape[1:]))}] = select_n"
    assert selected > 0 and shape not in str(jaxpr)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run whose update `NAN_AT` was the last straw, two updates a cycle."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    run = {"log_interval_env_steps": 1}
    config = make_config(path, agent=NAN_AGENT, updates_per_cycle=2, run=run)
    return config, path, training.train_to_exit_code(config)


def test_stop_ends_with_code_6_and_saves_the_state_before_the_update(stopped):
    config, path, code = stopped
    assert code == 6
    place = json.loads((path / "non_finite.json").read_text())
    env_steps_before = place.pop("env_steps")
    assert place == {"update": NAN_AT, "learner_cycle": NAN_AT // 2, "checkpoint": NAN_AT // 2 + 1}
    assert steps_in(path / "checkpoints") == [place["checkpoint"]]
    summary = summary_of(path)
    assert (summary["status"], summary["non_finite_updates"]) == ("failed", 1)
    last = rows_in(path)[-1]
    assert (last["learner_cycles"], last["non_finite_updates"]) == (place["checkpoint"], 1)
    expected = make_ring(config)
    resume(expected, path / "checkpoints")
    close(expected)
    state = expected.learner.state
    of_cycle = jax.tree.map(lambda leaf: leaf[0], state.experience.trajectory).valid.sum()
    assert env_steps_before + of_cycle == summary["env_steps"]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.networks))
    assert (int(state.step), expected.learner.num_updates) == (NAN_AT, NAN_AT)
    assert int(state.non_finite.in_a_row) == 0, "a resumed run has its tries again"


def test_rerun_finds_the_same_update_not_finite_and_says_where(stopped, capsys):
    _, path, _ = stopped
    assert rerun(path) == 6
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "not finite: metric loss, gradient weights"
    assert f"update {NAN_AT}, learner cycle {NAN_AT // 2}" in out
    for line in ("networks.weights", "experience.trajectory.env_steps.reward", "reward_sum"):
        assert line in out


def test_rerun_makes_one_environment_for_its_spec_and_closes_it(stopped, monkeypatch):
    _, path, _ = stopped
    made = []

    class Closing:
        """An environment that says when it is closed."""

        def __init__(self, config, *, num_envs, seed):
            self._environment = make_environment(config, num_envs=num_envs, seed=seed)
            self.num_envs, self.spec, self.is_closed = num_envs, self._environment.spec, False
            made.append(self)

        def close(self):
            self._environment.close()
            self.is_closed = True

    for module in (stored, make):
        monkeypatch.setattr(module, "make_environment", Closing)
    assert rerun(path) == 6
    assert [(each.num_envs, each.is_closed) for each in made] == [(1, True)]


def test_rerun_gives_the_loss_the_clock_that_it_had(stopped, monkeypatch):
    _, path, _ = stopped
    place = json.loads((path / "non_finite.json").read_text())
    clocks, loss = [], NanAgent.loss

    def recorded(self, networks, experience, key, clock):
        jax.debug.callback(clocks.append, clock)
        return loss(self, networks, experience, key, clock)

    monkeypatch.setattr(NanAgent, "loss", recorded)
    rerun(path)
    jax.effects_barrier()
    got = [(int(each.step), int(each.previous_step), float(each.env_steps)) for each in clocks]
    assert got == [(NAN_AT, NAN_AT - 1, place["env_steps"])]


def test_rerun_with_a_mended_loss_ends_with_0(stopped, monkeypatch, capsys):
    _, path, _ = stopped
    monkeypatch.setattr(breaking.NanAgent, "bad_steps", (10**6,))
    assert rerun(path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "every leaf is finite"


def test_rerun_of_a_run_that_did_not_end_so_is_a_usage_error(tmp_path, capsys):
    assert rerun(tmp_path) == 2
    assert "ended with exit code 6" in last_line(capsys)


def test_last_words_name_the_update_the_rerun_and_the_resume_command(tmp_path, capsys):
    config = make_config(tmp_path / "a run", agent=NAN_AGENT)
    assert training.train_to_exit_code(config) == 6
    last = last_line(capsys)
    assert f"NonFiniteError: the loss or the gradients of update {NAN_AT} (learner cycle" in last
    assert f"python -m sebulba.rerun '{tmp_path}/a run'." in last
    assert last.endswith("--resume latest")


def test_skip_goes_on_and_counts_in_every_row(tmp_path):
    config = make_config(tmp_path, agent=NAN_AGENT, learner={"on_non_finite": "skip"})
    assert training.train_to_exit_code(config) == 0
    assert summary_of(tmp_path)["non_finite_updates"] == 1
    counts = [row["non_finite_updates"] for row in rows_in(tmp_path)]
    assert counts[-1] == 1 and counts == sorted(counts)
    rows = [row for row in rows_in(tmp_path) if row["loss"] is None]
    assert len(rows) == 1, "the row says so, in JSON that strict parsers read"


def test_resumed_run_takes_the_update_again_with_the_next_trajectories(stopped, tmp_path):
    config, path, _ = stopped
    shutil.copytree(path, tmp_path / "run")
    resumed = dataclasses.replace(config, run_dir=str(tmp_path / "run"), resume="latest")
    assert training.train_to_exit_code(resumed) == 6
    assert summary_of(tmp_path / "run")["non_finite_updates"] == 2
