"""A run that four hosts began continues on two, then on three."""

import json

import pytest

from tests.hosts.processes import launch
from tests.run.resuming import rows_in

HEADER = """
env: {suite: jax, id: Catch-v0}
actor: {threads_per_device: 1, num_envs: 8, trajectory_length: LENGTH}
run: {log_interval_env_steps: 1000, total_env_steps: 1000}
"""
PPO = """
learner: {policy_lag: 1}
agent: {name: ppo, network: mlp, hidden_sizes: [64, 64], num_epochs: 4, num_minibatches: 4,
  learning_rate: 1e-3, max_grad_norm: 0.5}
"""
R2D2 = """
agent: {name: r2d2, network: mlp, hidden_sizes: [64], lstm_size: 64, dueling_size: 64, burn_in: 8,
  learn_length: 16, n_step: 3, batch_size: 32, replay_ratio: 16.0, replay_capacity: 50_000,
  min_replay_rows: 1_000, target_period: 100, learning_rate: 1e-3, adam_epsilon: 1e-5}
"""
IMPALA = """
agent: {name: impala, network: mlp, hidden_sizes: [64, 64], loss_reduction: mean, optimizer: adam,
  learning_rate: 1e-3, adam_epsilon: 1e-5, max_grad_norm: 0.5}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "length", "env_steps"),
    [
        pytest.param(IMPALA, 20, 160_000, id="impala"),
        pytest.param(PPO, 20, 60_000, id="ppo"),
        pytest.param(R2D2, 8, 60_000, id="r2d2"),
    ],
)
def test_learning_goes_on_on_other_numbers_of_hosts(agent, length, env_steps, tmp_path):
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(HEADER.replace("LENGTH", str(length)) + agent)
    returns = []
    for num_hosts, goal in ((4, env_steps), (2, env_steps + 20_000), (3, env_steps + 40_000)):
        flags = ["--run.total-env-steps", goal, *(["--resume", "latest"] if returns else [])]
        code, output = launch(config, run_dir, *flags, num_hosts=num_hosts, num_devices=1)
        assert code == 0, output
        places = [run_dir, *(run_dir / "hosts" / str(n) for n in range(1, num_hosts))]
        hosts = [json.loads((place / "summary.json").read_text()) for place in places]
        learned = [each["learned"] for host in hosts for each in host["ledger"]]
        assert sum(learned) == hosts[0]["env_steps"] >= goal
        assert len({host["networks_crc32"] for host in hosts}) == 1
        returns.append(hosts[0]["final_episode_return_mean"])
    assert min(returns[1:]) >= 0.9 * returns[0] > 0.5, returns
    env_steps = [row["env_steps"] for row in rows_in(run_dir)]
    assert env_steps == sorted(set(env_steps))
