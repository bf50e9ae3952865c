"""Act with EARL on EnvPool's CartPole, and print the env steps.

Agent and settings are those of EARL's `test_benchmark_gymnasium_inference`.
"""

import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).resolve().parents[2]))

import envpool
import jax
import optax
from earl.agents.simple_policy_gradient import simple_policy_gradient
from earl.core import env_info_from_gymnasium
from earl.environment_loop.gymnasium_loop import GymnasiumLoop
from jax_loop_utils.metric_writers.noop_writer import NoOpWriter

NUM_ENVS, LENGTH, HIDDEN_SIZES = 16, 100, (200, 200, 200, 200, 200)


def make_environment():
    """Make the environments of one actor thread."""
    return envpool.make_gymnasium("CartPole-v1", num_envs=NUM_ENVS, num_threads=1)


def main() -> None:
    """Act until this process is killed."""
    key = jax.random.PRNGKey(0)
    info = env_info_from_gymnasium(make_environment(), NUM_ENVS)
    config = simple_policy_gradient.Config(
        max_actor_state_history=LENGTH, optimizer=optax.adam(1e-3)
    )
    agent = simple_policy_gradient.SimplePolicyGradient(info, config)
    loop = GymnasiumLoop(
        make_environment,
        agent,
        NUM_ENVS,
        key,
        metric_writer=NoOpWriter(),
        actor_only=True,
        vectorization_mode="none",
    )
    # Both actor threads put each of their cycles into this queue.
    cycles, get = itertools.count(1), loop._experience_q.get

    def counted(*arguments, **settings):
        experience = get(*arguments, **settings)
        print(f"env steps: {next(cycles) * NUM_ENVS * LENGTH}", flush=True)
        return experience

    loop._experience_q.get = counted
    sizes = [*info.observation_space.shape, *HIDDEN_SIZES, info.action_space.n]
    networks = simple_policy_gradient.make_networks(sizes, key)
    loop.run(agent.new_state(networks, key), 2_000_000_000, LENGTH, print_progress=False)


if __name__ == "__main__":
    main()
