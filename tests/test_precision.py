"""Where JAX has 64-bit types, agents compute what they compute without."""

import dataclasses
import json

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sebulba
from sebulba.agent import Agent
from sebulba.agent_check import AgentError, validate_methods
from sebulba.config import EnvConfig, RunConfig
from sebulba.evaluation.playing import play
from sebulba.evaluation.stored import load_stored_policy
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy
from sebulba.precision import in_32_bits
from sebulba.process import EXIT_DONE
from sebulba.run import training
from tests.evaluation.runs import tiny_config
from tests.extras import needs_search
from tests.subprocesses import environment, run_python


def trained(name, run_dir, *, learns, **changes):
    """Train in this thread, and return the run directory."""
    config = tiny_config(name, run_dir, **changes)
    config = dataclasses.replace(
        config, run=RunConfig(total_env_steps=200, log_interval_env_steps=100, mode="serial")
    )
    if learns:
        agent = dataclasses.replace(config.agent, min_replay_rows=100)
        config = dataclasses.replace(config, agent=agent)
    assert training.train_to_exit_code(config) == EXIT_DONE
    return run_dir


def outcome(run_dir, directory):
    """Return checksum and updates, sampled episodes and actions, and the actions of an export."""
    summary = json.loads((run_dir / "summary.json").read_text())
    stored = load_stored_policy(run_dir, "latest")
    evaluation, _ = play(
        stored,
        episodes=4,
        seed=None,
        greedy=False,
        parallel_envs=2,
        max_episode_steps=30,
    )
    policy, spec = sebulba.load_policy(run_dir, greedy=False), stored.environment.observation
    assert export(_parser().parse_args([str(run_dir), "-o", str(directory)])) == EXIT_DONE
    exported = Policy(directory)
    observation = np.full((1, *spec.shape), 0.5, spec.dtype)
    state = exported_state = None
    actions = []
    for _ in range(3):
        action, state = policy(observation, state)
        other, exported_state = exported(observation, exported_state)
        actions.append((action.tolist(), other.tolist()))
    records = [dataclasses.astuple(each) for each in evaluation.result().records]
    return summary["networks_crc32"], summary["updates"], records, actions


@pytest.mark.parametrize(
    ("name", "learns"),
    [
        ("impala", False),
        pytest.param("sac", True, marks=pytest.mark.slow),
        pytest.param("r2d2", True, marks=pytest.mark.slow),
        pytest.param("gumbel_muzero", True, marks=[pytest.mark.slow, needs_search]),
    ],
)
def test_training_evaluation_and_export_are_bitwise_those_without_64_bit_types(
    tmp_path, name, learns
):
    expected = outcome(trained(name, tmp_path / "32", learns=learns), tmp_path / "export-32")
    with jax.enable_x64(True):
        run_dir = trained(name, tmp_path / "64", learns=learns)
        assert outcome(run_dir, tmp_path / "export-64") == expected
    assert expected[1] > 0


@dataclasses.dataclass(frozen=True)
class Swing:
    """A pendulum in whatever precision JAX has."""

    observation = jax.ShapeDtypeStruct((2,), jnp.result_type(float))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, key):
        state = jax.random.uniform(key, (2,), jnp.result_type(float))
        return state, state

    def step(self, state, action, key):
        del key
        speed = state[1] - 0.1 * jnp.sin(state[0]) + jnp.where(action == 1, 0.01, -0.01)
        state = jnp.stack([state[0] + 0.1 * speed, speed])
        return state, state, jnp.cos(state[0]), jnp.zeros((), bool), jnp.zeros((), bool)


def make_swing():
    @dataclasses.dataclass(frozen=True)
    class Precise(Swing):
        observation = jax.ShapeDtypeStruct((2,), jnp.result_type(float))

    return Precise()


def test_a_task_computes_in_double_precision_and_the_agent_sees_32_bits(tmp_path):
    env = EnvConfig(suite="jax", id=f"{__name__}:make_swing", options={"max_episode_steps": 20})
    with jax.enable_x64(True):
        environment = sebulba.envs.make_environment(env, num_envs=2, seed=0)
        first = environment.reset()
        row = environment.step(np.zeros(2, np.int32))
        assert environment.whole_state.task_state.dtype == np.float64
        trained("impala", tmp_path / "run", learns=False, env=env)
    for each in (first, row):
        assert each.observation.dtype == each.reward.dtype == np.float32
    assert environment.spec.observation.dtype == np.float32


def test_an_agent_without_a_method_is_refused_with_64_bit_types_too():
    class Empty(Agent):
        """Has the empty methods of the protocol."""

    with jax.enable_x64(True), pytest.raises(AgentError, match="Empty has no method act"):
        validate_methods(in_32_bits(Empty()))


def test_an_agent_of_several_runs_is_changed_once():
    class Own:
        def act(self):
            return jnp.zeros(()).dtype

    agent = Own()
    with jax.enable_x64(True):
        act = in_32_bits(agent).act
        assert in_32_bits(agent).act is act and act() == np.float32


def test_an_agent_whose_methods_cannot_be_replaced_is_refused():
    class Fixed:
        __slots__ = ()

        def act(self):
            """Is there."""

    assert isinstance(in_32_bits(Fixed()), Fixed)  # nothing to replace
    with jax.enable_x64(True), pytest.raises(TypeError, match="Remove __slots__"):
        in_32_bits(Fixed())


CONFIGS = {
    "a2c_cartpole": [],
    "pg_cartpole": [],
    "impala_recall": [],
    "ppo_cartpole": [],
    "ppo_continuous_bandit": [],
    "ddqn_cartpole": ["--agent.min-replay-rows", "500"],
    "rainbow_cartpole": ["--agent.min-replay-rows", "500"],
    "pqn_cartpole": [],
    "r2d2_recall": ["--agent.min-replay-rows", "500"],
    "sac_pendulum": ["--agent.min-replay-rows", "500"],
    "gumbel_muzero_catch": ["--agent.min-replay-rows", "500"],
    "skills_room": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_jax_enable_x64_changes_no_run(tmp_path, config):
    checksums = []
    for x64 in "01":
        done = run_python(
            *("-m", "sebulba.train", config, "--run-dir", tmp_path / x64),
            *("--run.total-env-steps", "3000", "--learner.policy-lag", "0", *CONFIGS[config]),
            variables=environment(JAX_ENABLE_X64=x64),
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / x64 / "summary.json").read_text())
        checksums.append((summary["networks_crc32"], summary["updates"]))
    assert checksums[0] == checksums[1] and checksums[0][1] > 0


@pytest.mark.slow
def test_jax_enable_x64_changes_no_answer_of_the_check():
    answers = [
        run_python(
            *("-m", "sebulba.check", "ppo_bandit", "--only", "ratios", "devices"),
            variables=environment(JAX_ENABLE_X64=x64),
        )
        for x64 in "01"
    ]
    assert [each.returncode for each in answers] == [0, 0], answers[1].stdout
    assert answers[0].stdout == answers[1].stdout
