"""Sampled evaluation explores as training did: at its env steps, and by its environments' rates."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import sebulba
from sebulba.config import ActorConfig, Config, EnvConfig, EvaluationConfig
from sebulba.config.run_spec import make_run_spec
from sebulba.evaluation.episodes import EvaluationPlan, Evaluator
from sebulba.evaluation.policy import Policy
from sebulba.evaluation.sampling import spread
from sebulba.evaluation.stored import StoredPolicy, read_environment_spec
from sebulba.run import training
from sebulba.toolkit.schedules import Schedule
from sebulba_agents.config import PQNConfig
from sebulba_agents.ddqn import DDQN
from sebulba_agents.pqn import PQN
from sebulba_agents.r2d2 import R2D2
from sebulba_agents.replay_config import DDQNConfig, R2D2Config
from tests.evaluation.runs import tiny_config

CATCH = EnvConfig(suite="jax", id="Catch-v0")
SLOPE = Schedule(schedule="linear", start=1.0, end=0.0, env_steps=10_000)
NETWORK = {"network": "mlp", "hidden_sizes": (8,)}
REPLAY = {"replay_capacity": 2_000, "min_replay_rows": 400, "batch_size": 8}
AGENTS = {
    "pqn": (PQN, PQNConfig(epsilon=SLOPE, **NETWORK)),
    "ddqn": (DDQN, DDQNConfig(epsilon=SLOPE, epsilon_exponent=3.0, **NETWORK, **REPLAY)),
    "r2d2": (R2D2, R2D2Config(lstm_size=8, dueling_size=8, **NETWORK, **REPLAY)),
}
NUM_ENVS, NUM_ACTORS, ENV_STEPS = 4, 2, 6_000


def rates_of(agent, state):
    return state.epsilon if hasattr(state, "epsilon") else agent.exploration.epsilon(state)


@pytest.fixture(params=AGENTS)
def watched(request):
    """Returns a stored policy of an agent, and the list of rates `[B]` that it explores with."""
    agent_class, settings = AGENTS[request.param]
    rates = []

    class Watched(agent_class):
        def act(self, networks, actor_state, env_step, *, greedy):
            jax.debug.callback(lambda each: rates.append(each), rates_of(self, actor_state))
            return super().act(networks, actor_state, env_step, greedy=greedy)

    actor = ActorConfig(threads_per_device=NUM_ACTORS, num_envs=NUM_ENVS, trajectory_length=8)
    config = Config(env=CATCH, agent=settings, actor=actor)
    spec = read_environment_spec(CATCH)
    agent = Watched(settings, make_run_spec(config, spec, NUM_ACTORS, num_learner_devices=1))
    networks = jax.jit(lambda key: agent.actor_networks(agent.init_networks(key)))(
        jax.random.key(0)
    )
    stored = StoredPolicy(
        config=config,
        agent=agent,
        environment=spec,
        networks=networks,
        device=jax.devices()[0],
        learner_cycle=1,
        env_steps=ENV_STEPS,
        updates=1,
    )
    return stored, rates


def rates_in_training(stored):
    """Returns the rates of all environments of training at the env steps of the checkpoint."""
    agent, key = stored.agent, jax.random.key(0)
    rates = []
    for actor in range(NUM_ACTORS):
        state = agent.init_actor_state(stored.networks, NUM_ENVS, key, actor)
        rates.append(rates_of(agent, agent.advance_actor_state(state, ENV_STEPS)))
    return np.concatenate(rates)


def test_an_evaluation_explores_as_training_did_however_long_it_plays(watched):
    stored, rates = watched
    plan = EvaluationPlan(
        env=CATCH, episodes=12, num_envs=3, max_episode_steps=20, greedy=False, seed=0
    )
    evaluator = Evaluator(
        stored.agent, plan, device=stored.device, num_training_envs=stored.num_training_envs
    )
    evaluation = evaluator.start(stored.networks, env_steps=stored.env_steps)
    while not evaluation.is_done:
        evaluation.advance()
    evaluation.close()
    jax.effects_barrier()
    expected = rates_in_training(stored)[[1, 4, 6]]
    assert len(rates) > 32
    np.testing.assert_allclose(rates, [expected] * len(rates), rtol=1e-5)


def test_a_policy_explores_as_training_did_however_long_it_acts(watched):
    stored, rates = watched
    policy, state = Policy(stored, greedy=False, seed=0), None
    for _ in range(5):
        _, state = policy(np.zeros((NUM_ENVS * NUM_ACTORS, 50), np.float32), state)
    jax.effects_barrier()
    np.testing.assert_allclose(rates, [rates_in_training(stored)] * 5, rtol=1e-5)


@pytest.mark.parametrize(
    ("num_envs", "total", "numbers"),
    [(4, 4, [0, 1, 2, 3]), (1, 9, [4]), (2, 8, [2, 6]), (8, 4, [0, 0, 1, 1, 2, 2, 3, 3])],
)
def test_environments_are_evenly_spread_over_those_of_training(num_envs, total, numbers):
    assert spread(num_envs, total).tolist() == numbers


def test_evaluation_in_training_samples_the_actions_of_the_one_afterwards(tmp_path):
    evaluation = EvaluationConfig(interval_env_steps=100, episodes=8, parallel_envs=2, greedy=False)
    settings = PQNConfig(epsilon=dataclasses.replace(SLOPE, env_steps=200), **NETWORK)
    config = tiny_config("impala", tmp_path / "run", agent=settings, evaluation=evaluation)
    assert training.train_to_exit_code(config) == 0
    rows = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    result = sebulba.evaluate(tmp_path / "run", episodes=8)
    assert json.loads(rows[-1])["protocol"]["greedy"] is False
    assert json.loads(rows[-1])["return_mean"] == result.return_mean
