"""Learning with a delayed copy of the parameters: Q-learning agents and Gumbel MuZero."""

import jax
import jax.numpy as jnp

from sebulba.agent import Agent
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.optimizers import clipped_adam, descend
from sebulba.toolkit.replay import ReplayRatio, ReplayState
from sebulba.toolkit.schedules import at_clock
from sebulba.types import Clock, PyTree, RunSpec
from sebulba_agents.replay_config import ValueReplayConfig


@pytree_dataclass
class TargetNetworks:
    """The parameters, and their delayed copy."""

    online: PyTree
    target: PyTree  # None: no copy is kept


@pytree_dataclass
class TargetOptState:
    """The optimizer's state."""

    adam: PyTree
    num_periods: jax.Array  # [] int32, complete target periods at the last applied update


def with_copy(online: PyTree) -> TargetNetworks:
    """Return parameters and their copy as target parameters."""
    return TargetNetworks(online=online, target=jax.tree.map(jnp.copy, online))


class TargetNetworkAgent(Agent):
    """Base of agents with a replay that act with online parameters and bootstrap from a copy."""

    def __init__(self, config: ValueReplayConfig, run_spec: RunSpec, replay_ratio: ReplayRatio):
        self._config = config
        self._run_spec = run_spec
        self._replay_ratio = replay_ratio
        self._adam = clipped_adam(epsilon=config.adam_epsilon, max_grad_norm=config.max_grad_norm)

    def copy_to_targets(self, networks: TargetNetworks) -> TargetNetworks:
        """Return the parameters and their copy, if a copy is kept."""
        return networks if networks.target is None else with_copy(networks.online)

    def init_opt_state(self, networks: TargetNetworks) -> TargetOptState:
        """Return the optimizer's initial state."""
        return TargetOptState(adam=self._adam.init(networks.online), num_periods=jnp.int32(0))

    def optimize(
        self,
        networks: TargetNetworks,
        opt_state: TargetOptState,
        grads: TargetNetworks,
        experience: ReplayState,
        clock: Clock,
    ) -> tuple[TargetNetworks, TargetOptState]:
        """Take an Adam step; copy to the target network every `target_period` updates."""
        del experience
        config = at_clock(self._config, clock, self._run_spec)
        online, adam = descend(
            self._adam,
            networks.online,
            opt_state.adam,
            grads.online,
            learning_rate=config.learning_rate,
        )
        # If the last update of a period was discarded, the next one copies.
        num_periods = (clock.step + 1) // config.target_period
        target = networks.target
        if target is not None:
            # Not `lax.cond`, on whose predicate the host of a GPU waits.
            is_new = num_periods > opt_state.num_periods
            target = jax.tree.map(
                lambda new, old: jax.lax.select(is_new, new, old), online, networks.target
            )
        return (
            TargetNetworks(online=online, target=target),
            TargetOptState(adam=adam, num_periods=num_periods),
        )

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return the number of updates that keeps the replay ratio exactly."""
        return self._replay_ratio.num_updates_in(cycle)

    def actor_networks(self, networks: TargetNetworks) -> PyTree:
        """Return the online parameters."""
        return networks.online
