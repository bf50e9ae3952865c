"""Optimizers from agents' settings, and a step of one."""

import jax
import optax

from sebulba.types import PyTree
from sebulba_agents.config import ActorCriticConfig


def make_optimizer(config: ActorCriticConfig, num_updates: int) -> optax.GradientTransformation:
    """Returns the clip to a global norm, then Adam or RMSProp.

    RMSProp is TensorFlow's, as the papers of its time used it: ε inside the square root, initial
    second moment 1.

    Args:
        config: an agent's.
        num_updates: of the whole run, over which the learning rate falls to 0 if it decays.
    """
    rate = config.learning_rate
    if config.learning_rate_decay:
        rate = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    if config.optimizer == "adam":
        return clipped_adam(
            learning_rate=rate, epsilon=config.adam_epsilon, max_grad_norm=config.max_grad_norm
        )
    rmsprop = optax.rmsprop(
        rate,
        decay=config.rmsprop_decay,
        eps=config.rmsprop_epsilon,
        eps_in_sqrt=True,
        initial_scale=1.0,
    )
    return _clipped(rmsprop, config.max_grad_norm)


def clipped_adam(
    *, learning_rate: optax.ScalarOrSchedule, epsilon: float, max_grad_norm: float | None
) -> optax.GradientTransformation:
    """Returns Adam after clipping, or Adam alone.

    Args:
        learning_rate: constant, or by the number of steps taken.
        epsilon: ε, outside the square root.
        max_grad_norm: of all gradients together; None: not clipped.
    """
    return _clipped(optax.adam(learning_rate, eps=epsilon), max_grad_norm)


def descend(
    optimizer: optax.GradientTransformation, params: PyTree, opt_state: PyTree, grads: PyTree
) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the optimizer's state after a step."""
    # Optax raises a float to an integer count, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def _clipped(
    step: optax.GradientTransformation, max_grad_norm: float | None
) -> optax.GradientTransformation:
    if max_grad_norm is None:
        return step
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), step)
