"""Fit the model of `gumbel_muzero` to random play, and print what rewards it predicts elsewhere.

    python -m benchmarks.model_rewards CONFIG [--env-steps 102_400] [--batches 3000]

Needs the extra `search`; other flags are the config's, such as `--agent.unroll-length 2`. The
replay holds random play, with uniform policies and values of 0, so values are fitted to the sum of
the next `n_step` rewards. After every thousand batches, a line gives the mean prediction in other
random play, a fifth as long,

- taken: for actions that were followed by a positive reward;
- others: for the other actions in the same observations;
- elsewhere: for actions that were not followed by one.

The better the model, the nearer is the first to the reward and the last to 0. `others` is above 0
also where the environment gives the reward for several actions.
"""

import argparse
import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness, rings
from sebulba.config import Config, DevicesConfig
from sebulba.config.loading import load_config
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.types import PyTree, Trajectory
from sebulba_agents.config import RandomConfig
from sebulba_agents.gumbel_muzero import GumbelMuZero, Planned
from sebulba_agents.replay_config import GumbelMuZeroConfig


def random_play(config: Config, *, env_steps: int, seed: int) -> Iterator[Trajectory]:
    """Yield trajectories of random actions, with what the search would have stored.

    Args:
        config: of an agent that learns from them; only its environment and actors count.
        env_steps: number of transitions, rounded up to complete trajectories.
        seed: of environments and actions.
    """
    config = dataclasses.replace(
        config,
        seed=seed,
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        learner=dataclasses.replace(config.learner, trajectories_per_cycle=1),
        agent=RandomConfig(),
    )
    config = rings.of_length(config, env_steps)
    ring = rings.quiet_ring(config)
    try:
        for _ in range(-(-env_steps // (config.actor.num_envs * config.actor.trajectory_length))):
            (item,) = rings.act_one_cycle(ring)
            yield _as_planned(item.trajectory, ring.environments[0].spec.action_space.n)
    finally:
        ring.close_environments()


class Fit:
    """A model, an optimizer and a replay of random play."""

    def __init__(self, config: Config, *, env_steps: int):
        environment = make_environment(config.env, num_envs=config.actor.num_envs, seed=0)
        self.agent = rings.make_agent(config, environment.spec, num_actors=1)
        environment.close()
        networks = self.agent.init_networks(jax.random.key(config.seed))
        experience = self.agent.init_experience(networks, config.actor.num_envs)
        add = jax.jit(self._add, donate_argnums=1)
        for trajectory in random_play(config, env_steps=env_steps, seed=0):
            experience = add(networks, experience, trajectory)
        self.state = (networks, self.agent.init_opt_state(networks), experience)
        self._update = jax.jit(self._take_step, donate_argnums=0)

    def update(self, number: int) -> None:
        """Fit the model to one batch."""
        self.state = self._update(self.state, jax.random.key(number), jnp.int32(number))

    @property
    def params(self) -> PyTree:
        """Those that acting would use."""
        return self.agent.actor_networks(self.state[0])

    def _add(self, networks: PyTree, experience: PyTree, trajectory: Trajectory) -> PyTree:
        return self.agent.update_experience(networks, experience, (), (), trajectory, jnp.int32(0))

    def _take_step(self, state: PyTree, key: jax.Array, number: jax.Array) -> PyTree:
        networks, opt_state, experience = state
        loss = jax.value_and_grad(self.agent.loss, has_aux=True)
        (_, (experience, _)), grads = loss(networks, experience, key, number)
        networks, opt_state = self.agent.optimize(networks, opt_state, grads, experience)
        return networks, opt_state, experience


def predicted_rewards(
    agent: GumbelMuZero, params: PyTree, trajectory: Trajectory
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return predictions `[N, A]`, actions `[N]` and rewards `[N]` of a trajectory's transitions.

    The reward of a transition that is not valid is NaN.
    """
    observation, action, reward = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:]),
        (
            jax.tree.map(lambda x: x[:-1], trajectory.env_steps.observation),
            trajectory.action,
            jnp.where(trajectory.valid, trajectory.env_steps.reward[1:], jnp.nan),
        ),
    )
    model = agent.model
    latent = model.represent(params, observation)
    every = jnp.arange(trajectory.extras.policy.shape[-1])
    predicted = jax.vmap(lambda a: model.step(params, latent, jnp.full(len(action), a)).reward)
    return predicted(every).T, action, reward


def means(predicted: np.ndarray, action: np.ndarray, reward: np.ndarray) -> dict[str, float]:
    """Return the three means that the docstring of the file names; NaN if nothing was rewarded.

    Args:
        predicted: `[N, A]` rewards.
        action: `[N]`, taken.
        reward: `[N]`, received for it; NaN entries count nowhere.
    """
    chosen = np.take_along_axis(predicted, action[:, None], axis=1)[:, 0]
    others = (predicted.sum(axis=1) - chosen) / (predicted.shape[1] - 1)
    return {
        "taken": float(chosen[reward > 0.0].mean()),
        "others": float(others[reward > 0.0].mean()),
        "elsewhere": float(chosen[reward <= 0.0].mean()),
    }


def measure(config: Config, *, env_steps: int, batches: int, every: int) -> Iterator[str]:
    """Fit the model, and yield a line after every `every` batches.

    Raises:
        ConfigError: the config's agent is not `gumbel_muzero`.
    """
    if not isinstance(config.agent, GumbelMuZeroConfig):
        raise ConfigError(f"agent.name: expected gumbel_muzero, got {config.agent.name}")
    agent = dataclasses.replace(config.agent, replay_capacity=env_steps)
    config = dataclasses.replace(config, agent=agent)
    fit = Fit(config, env_steps=env_steps)
    elsewhere = list(random_play(config, env_steps=env_steps // 5, seed=1))
    predict = jax.jit(functools.partial(predicted_rewards, fit.agent))
    for number in range(1, batches + 1):
        fit.update(number)
        if number % every == 0:
            parts = [jax.device_get(predict(fit.params, trajectory)) for trajectory in elsewhere]
            of_all = means(*(np.concatenate(part) for part in zip(*parts, strict=True)))
            yield f"{number:6,} batches  " + "  ".join(f"{k} {v:.3f}" for k, v in of_all.items())


def _as_planned(trajectory: Trajectory, num_actions: int) -> Trajectory:
    uniform = jnp.full((*trajectory.action.shape, num_actions), 1.0 / num_actions)
    planned = Planned(policy=uniform, value=jnp.zeros(trajectory.action.shape))
    return dataclasses.replace(trajectory, extras=planned)


def main() -> None:
    """Fit the model of a config, and print what it predicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="name of a shipped config, or YAML file")
    parser.add_argument("--env-steps", type=int, default=102_400)
    parser.add_argument("--batches", type=int, default=3_000)
    arguments, flags = parser.parse_known_args()
    config = load_config(arguments.config, flags)
    harness.compile_once()
    for line in measure(
        config, env_steps=arguments.env_steps, batches=arguments.batches, every=1_000
    ):
        print(line, flush=True)


if __name__ == "__main__":
    main()
