"""Eight virtual devices in every split between actors and learner."""

import pytest

from tests.hosts.processes import end_of, start
from tests.run.resuming import rows_in

NUM_DEVICES = 8
CONFIG = """
env: {{suite: jax, id: Catch-v0}}
devices: {{actor: {actor}, learner: {learner}}}
actor: {{threads_per_device: 1, num_envs: {num_envs}, trajectory_length: 5}}
agent: {{name: 'tests.toys:ToyAgent', updates_per_cycle: {updates}}}
checkpoint: {{interval_s: null}}
run: {{log_interval_env_steps: 1, total_env_steps: {env_steps}}}
"""


def run(tmp_path, *, actor, learner, cycles=12, updates=2):
    """Train in a separate process; return its last row of metrics and its output."""
    num_envs = 2 * len(learner)
    config = CONFIG.format(
        actor=actor,
        learner=learner,
        num_envs=num_envs,
        updates=updates,
        env_steps=cycles * num_envs * 5 * 4 // 5,
    )
    (tmp_path / "config.yaml").write_text(config)
    command = ["-m", "sebulba.train", tmp_path / "config.yaml", "--run-dir", tmp_path / "run"]
    with start(command, NUM_DEVICES) as process:
        code, output = end_of(process)
    assert code == 0, output
    return rows_in(tmp_path / "run")[-1], output


# By default, tests/run trains with devices that only learn, and with some that also act.
@pytest.mark.slow
@pytest.mark.parametrize("num_actor_devices", range(1, 8))
def test_any_split_trains(num_actor_devices, tmp_path):
    devices = list(range(NUM_DEVICES))
    row, output = run(
        tmp_path, actor=devices[:num_actor_devices], learner=devices[num_actor_devices:]
    )
    assert row["updates"] >= 12
    assert "rendezvous" not in output.lower()


@pytest.mark.slow
def test_devices_that_both_act_and_learn_train(tmp_path):
    devices = list(range(NUM_DEVICES))
    row, output = run(tmp_path, actor=devices, learner=devices)
    assert row["updates"] >= 12
    assert "rendezvous" not in output.lower()


@pytest.mark.slow
def test_a_thousand_updates_finish_while_actors_are_busy(tmp_path):
    devices = list(range(NUM_DEVICES))
    row, output = run(tmp_path, actor=devices, learner=devices, cycles=300, updates=4)
    assert row["updates"] >= 1000
    assert "rendezvous" not in output.lower()
