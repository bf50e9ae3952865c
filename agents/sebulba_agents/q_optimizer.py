"""A Q network, its delayed copy, and the optimizer of the two."""

import jax
import jax.numpy as jnp
import optax

from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree
from sebulba_agents.config import QLearningConfig
from sebulba_agents.optimizers import clipped_adam, descend


@pytree_dataclass
class QNetworks:
    """Parameters of the network that is trained, and of its delayed copy."""

    online: PyTree
    target: PyTree


@pytree_dataclass
class QOptState:
    """The optimizer's state."""

    adam: PyTree
    num_updates: jax.Array  # [] int32


def with_copy(online: PyTree) -> QNetworks:
    """Returns parameters and their copy."""
    return QNetworks(online=online, target=jax.tree.map(jnp.copy, online))


class QOptimizer:
    """Adam on the online parameters, and a copy to the target network once a period."""

    def __init__(self, config: QLearningConfig):
        self._target_period = config.target_period
        self._adam = clipped_adam(
            learning_rate=config.learning_rate,
            epsilon=config.adam_epsilon,
            max_grad_norm=config.max_grad_norm,
        )

    def init(self, networks: QNetworks) -> QOptState:
        """Returns the state before the first step."""
        return QOptState(adam=self._adam.init(networks.online), num_updates=jnp.int32(0))

    def step(
        self, networks: QNetworks, opt_state: QOptState, grads: QNetworks
    ) -> tuple[QNetworks, QOptState]:
        """Returns networks and state after a step."""
        online, adam = descend(self._adam, networks.online, opt_state.adam, grads.online)
        num_updates = opt_state.num_updates + 1
        target = optax.periodic_update(online, networks.target, num_updates, self._target_period)
        return (
            QNetworks(online=online, target=target),
            QOptState(adam=adam, num_updates=num_updates),
        )
