"""Measure what search costs in acting: act cycles against mctx alone, with the same networks.

    python -m benchmarks.search [CONFIG] [--simulations 2 8 16 50] [--json FILE]

The config's agent is `gumbel_muzero`; needs the extra `search`. For each number of simulations:

- act cycle: fused acting, with the environment, the stored rows and the statistics;
- bare: as many calls of `mctx.gumbel_muzero_policy` in a jitted loop, with the agent's networks and
  mctx's own settings, and nothing else;
- bare with environment: the same, but the environment takes the actions in between.

The rate of an act cycle over the bare one is the share of its time that search takes, and the
number of simulations per second relative to mctx. Over the one with environment, it is the share
that is not the agent's, the stored rows' and the statistics'. The environment cannot be measured
alone: EnvPool's threads fall asleep during a search, and waking them takes longer than a step.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mctx

from benchmarks import alone, harness
from benchmarks.harness import Result
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.envs import make_environment
from sebulba.types import PyTree
from sebulba_agents.gumbel_muzero import GumbelMuZero
from sebulba_agents.planning import for_mctx

_CONFIG = "configs/gumbel_muzero_cartpole.yaml"


class Acting:
    """Work: act cycles of an agent, or searches alone, with one number of simulations."""

    def __init__(self, config: Config, num_simulations: int, num_cycles: int):
        self._config, self._num_cycles = config, num_cycles
        self._settings = dataclasses.replace(config.agent, num_simulations=num_simulations)
        device = jax.local_devices()[0]
        self._environment = make_environment(config.env, num_envs=config.actor.num_envs, seed=0)
        length = config.actor.trajectory_length
        run_spec = alone.acting_spec(
            self._environment.spec, num_envs=config.actor.num_envs, trajectory_length=length
        )
        self.agent = GumbelMuZero(self._settings, run_spec)
        networks = jax.jit(self.agent.init_networks)(jax.random.key(0))
        self.networks = self.agent.actor_networks(networks)
        self.env_step = self._environment.reset()
        self._carry = alone.first_carry(self.agent, self.networks, self.env_step, device=device)
        self._cycle = alone.fused_cycle(
            self.agent, self._environment, trajectory_length=length, device=device
        )
        self.num_rows = num_cycles * length * config.actor.num_envs

    def act(self) -> int:
        """Run act cycles, and return the number of searches."""
        for _ in range(self._num_cycles):
            collected = self._cycle(self.networks, self._carry)
            self._carry = collected.carry
        jax.block_until_ready(collected.trajectory)
        return self.num_rows

    def bare(self, *, with_environment: bool) -> Callable[[], int]:
        """Return work of as many searches by mctx, one batch after another."""
        environment = make_environment(
            self._config.env, num_envs=self._config.actor.num_envs, seed=0
        )
        observation = jax.tree.map(jnp.array, environment.reset().observation)
        fused = environment.fused()
        assert fused is not None

        def search(params: PyTree, carry: tuple[PyTree, PyTree], key: jax.Array):
            state, observation = carry
            output = mctx.gumbel_muzero_policy(
                params,
                key,
                *for_mctx(self.agent.model, params, observation),
                self._settings.num_simulations,
                max_num_considered_actions=self._settings.max_considered_actions,
            )
            if with_environment:
                state, env_step = fused.step(state, output.action.astype(jnp.int32))
                observation = env_step.observation
            else:
                # The next search depends on the action, so that none can be left out.
                shift = 1e-6 * jnp.sum(output.action.astype(jnp.float32))
                observation = jax.tree.map(lambda x: x + shift.astype(x.dtype), observation)
            return (state, observation), output.action_weights

        @jax.jit
        def loop(params: PyTree, carry: tuple[PyTree, PyTree], key: jax.Array):
            keys = jax.random.split(key, self._config.actor.trajectory_length)
            return jax.lax.scan(functools.partial(search, params), carry, keys)

        carry = (fused.state, observation)

        def run() -> int:
            nonlocal carry
            for number in range(self._num_cycles):
                carry, weights = loop(self.networks, carry, jax.random.key(number))
            jax.block_until_ready(weights)
            return self.num_rows

        return run


def measure(config: Config, simulations: list[int], *, num_cycles: int, repeats: int) -> Result:
    """Measure searches per second, in act cycles and without them."""
    work: dict[str, Callable[[], int]] = {}
    for number in simulations:
        acting = Acting(config, number, num_cycles)
        work[f"act cycle, {number} simulations"] = acting.act
        work[f"bare, {number} simulations"] = acting.bare(with_environment=False)
        work[f"bare with environment, {number} simulations"] = acting.bare(with_environment=True)
    rates = harness.interleave(work, repeats)
    ratios = {
        f"act cycle / {name}, {number} simulations": rates[f"act cycle, {number} simulations"].over(
            rates[f"{name}, {number} simulations"]
        )
        for number in simulations
        for name in ("bare", "bare with environment")
    }
    return Result(
        name=f"search, {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios=ratios,
        settings={"envs": config.actor.num_envs, "T": config.actor.trajectory_length},
    )


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = harness.parser(__doc__)
    parser.add_argument("config", nargs="?", default=_CONFIG)
    parser.add_argument("--simulations", type=int, nargs="+", default=[2, 8, 16, 50])
    parser.add_argument("--cycles", type=int, default=20, help="act cycles of a repeat")
    arguments = parser.parse_args()
    config = load_config(arguments.config, [])
    result = measure(
        config, arguments.simulations, num_cycles=arguments.cycles, repeats=arguments.repeats
    )
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
