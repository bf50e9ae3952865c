"""PPO: several epochs on each cycle's trajectories, with clipped importance weights.

Schulman et al. 2017 (arXiv 1707.06347), with generalised advantages (Schulman et al. 2016, arXiv
1506.02438) normalised in each minibatch.

Values and advantages are computed once a cycle, on all rows of a trajectory, with the parameters
that the cycle begins with. Each learner device shuffles its own share anew for each epoch: into
minibatches of transitions without an LSTM, of whole unrolls with one.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_mean, masked_moments
from sebulba.toolkit.returns import gae
from sebulba.toolkit.window import Window, push
from sebulba.types import RunSpec, Trajectory
from sebulba_agents.actor_critic import ActorCriticAgent
from sebulba_agents.config import PPOConfig
from sebulba_agents.networks import PolicyValue
from sebulba_agents.on_policy import (
    ActorCriticNetworks,
    Memory,
    Unroll,
    rewards_and_discounts,
    unroll_trajectory,
    with_scaled_rewards,
)

_STD_EPSILON = 1e-8


@pytree_dataclass
class Targets:
    """What stays the same for all epochs of a cycle; takes the place of a trajectory's extras."""

    log_probs: jax.Array  # [T, B] log μ(a_t), of the behaviour policy
    values: jax.Array  # [T, B]
    advantages: jax.Array  # [T, B]


@pytree_dataclass
class Minibatch:
    """Transitions: `[T, B]` of whole unrolls, or `[1, B]` of any time."""

    action: jax.Array  # [T, B, ...]
    valid: jax.Array
    targets: Targets


@pytree_dataclass
class PPOExperience:
    """A cycle's trajectories, with `Targets` for extras, and how they are shuffled."""

    window: Window
    order: jax.Array  # [T·N·B] or, with an LSTM, [N·B] int32: the permutation of this epoch


def make_ppo(config: PPOConfig, run_spec: RunSpec) -> ActorCriticAgent:
    """Returns the agent.

    Raises:
        ConfigError: naming the key to change.
    """
    return ActorCriticAgent(config, run_spec, learning=PPO(config, run_spec))


class PPO:
    """Learns in epochs of minibatches."""

    def __init__(self, config: PPOConfig, run_spec: RunSpec):
        """Checks that a learner device's share falls into minibatches.

        Raises:
            ConfigError: it does not.
        """
        self._config = config
        self._is_recurrent = config.lstm_size is not None
        self._num_entries = run_spec.batch_size_per_learner_device
        if not self._is_recurrent:
            self._num_entries *= run_spec.trajectory_length
        if config.num_minibatches < 1 or self._num_entries % config.num_minibatches:
            kind = "environments" if self._is_recurrent else "transitions"
            raise ConfigError(
                f"agent.num_minibatches: expected a divisor of the {self._num_entries} {kind} that"
                f" a learner device has in a cycle, got {config.num_minibatches}"
            )
        self.num_updates_per_cycle = config.num_epochs * config.num_minibatches
        self._num_updates = run_spec.num_cycles * self.num_updates_per_cycle

    def init_experience(self, window: Window) -> PPOExperience:
        """Returns the window with room for targets, unshuffled."""
        zeros = jnp.zeros_like(window.trajectory.env_steps.reward[1:])
        targets = Targets(log_probs=zeros, values=zeros, advantages=zeros)
        trajectory = dataclasses.replace(window.trajectory, extras=targets)
        return PPOExperience(
            window=Window(initial=window.initial, trajectory=trajectory),
            order=jnp.arange(self._num_entries, dtype=jnp.int32),
        )

    def update_experience(
        self,
        unroll: Unroll,
        networks: ActorCriticNetworks,
        experience: PPOExperience,
        memory: Memory,
        trajectory: Trajectory,
    ) -> PPOExperience:
        """Takes the trajectory in, with its targets under the parameters of now."""
        outputs = unroll_trajectory(unroll, networks, memory, trajectory)
        learned = with_scaled_rewards(networks, trajectory)
        targets = compute_targets(outputs, learned, self._config)
        trajectory = dataclasses.replace(trajectory, extras=targets)
        window = push(experience.window, memory, trajectory)
        return PPOExperience(window=window, order=experience.order)

    def loss(
        self,
        unroll: Unroll,
        networks: ActorCriticNetworks,
        experience: PPOExperience,
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[PPOExperience, Metrics]]:
        """Returns the loss of minibatch `step % num_minibatches`; an epoch's first shuffles."""
        number = step % self._config.num_minibatches
        order = jax.lax.cond(
            number == 0,
            lambda order: jax.random.permutation(key, order),
            lambda order: order,
            experience.order,
        )
        chosen = order.reshape(self._config.num_minibatches, -1)[number]
        of_minibatch = _unroll_envs if self._is_recurrent else _apply_to_transitions
        outputs, minibatch = of_minibatch(unroll, networks, experience.window, chosen)
        loss, metrics = ppo_loss(outputs, minibatch, self._config, clip=self._clip(step))
        return loss, (PPOExperience(window=experience.window, order=order), metrics)

    def window(self, experience: PPOExperience) -> Window:
        """Returns the trajectories; their rewards are raw."""
        return experience.window

    def _clip(self, step: jax.Array) -> jax.Array:
        clip = jnp.float32(self._config.clip)
        if not self._config.clip_decay:
            return clip
        return clip * jnp.maximum(1.0 - step.astype(jnp.float32) / self._num_updates, 0.0)


def compute_targets(outputs: PolicyValue, trajectory: Trajectory, config: PPOConfig) -> Targets:
    """Returns what a cycle's epochs share.

    Args:
        outputs: of all rows `[T + 1, B]`.
        trajectory: with the behaviour policy, and rewards as they are to be learned from.
        config: γ, λ, reward clip.
    """
    rewards, discounts = rewards_and_discounts(trajectory, config)
    return Targets(
        log_probs=trajectory.extras.policy.log_prob(trajectory.action),
        values=outputs.values[:-1],
        advantages=gae(
            rewards=rewards,
            discounts=discounts,
            valid=trajectory.valid,
            values=outputs.values,
            lambda_=config.lambda_,
        ),
    )


def clipped_surrogate(ratios: jax.Array, advantages: jax.Array, clip: jax.Array) -> jax.Array:
    """Returns `[...]`, what is maximised for each transition: arXiv 1707.06347, eq. 7.

    Args:
        ratios: `[...]`, π(a)/μ(a).
        advantages: `[...]`.
        clip: `[]`, ε.
    """
    return jnp.minimum(ratios * advantages, jnp.clip(ratios, 1.0 - clip, 1.0 + clip) * advantages)


def ppo_loss(
    outputs: PolicyValue, minibatch: Minibatch, config: PPOConfig, *, clip: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Returns the loss `[]` and metrics: means over a minibatch's valid transitions of all devices.

    Args:
        outputs: of the minibatch's transitions; differentiated.
        minibatch: the transitions.
        config: costs.
        clip: `[]`, ε of the importance weights.
    """
    valid, targets = minibatch.valid, minibatch.targets
    advantages = targets.advantages
    if config.normalize_advantages:
        mean, std = masked_moments(advantages, valid)
        advantages = (advantages - mean) / (std + _STD_EPSILON)
    log_probs = outputs.policy.log_prob(minibatch.action)
    # Masked before `exp`: the gradient of an infinite weight is NaN however that is masked.
    log_ratios = jnp.where(valid, log_probs - targets.log_probs, 0.0)
    ratios = jnp.exp(log_ratios)
    policy_loss = -masked_mean(clipped_surrogate(ratios, advantages, clip), valid)
    value_loss = masked_mean(_value_losses(outputs.values, targets, config.value_clip), valid)
    entropy = masked_mean(outputs.policy.entropy(), valid)
    loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": masked_mean(outputs.values, valid),
        # Of μ from π, by samples: on average the divergence, and never negative.
        "kl": masked_mean(ratios - 1.0 - log_ratios, valid),
        "clip_fraction": masked_mean((jnp.abs(ratios - 1.0) > clip).astype(jnp.float32), valid),
    }
    return loss, metrics


def _value_losses(values: jax.Array, targets: Targets, clip: float | None) -> jax.Array:
    returns = targets.values + targets.advantages
    errors = jnp.square(values - returns)
    if clip is not None:
        clipped = targets.values + jnp.clip(values - targets.values, -clip, clip)
        errors = jnp.maximum(errors, jnp.square(clipped - returns))
    return 0.5 * errors


def _unroll_envs(
    unroll: Unroll, networks: ActorCriticNetworks, window: Window, chosen: jax.Array
) -> tuple[PolicyValue, Minibatch]:
    """Returns outputs and transitions `[T, B]` of the chosen environments."""
    memory = jax.tree.map(lambda leaf: leaf[chosen], window.initial)
    trajectory = jax.tree.map(lambda leaf: leaf[:, chosen], window.trajectory)
    outputs = unroll_trajectory(unroll, networks, memory, trajectory)
    return jax.tree.map(lambda leaf: leaf[:-1], outputs), _as_minibatch(trajectory)


def _apply_to_transitions(
    unroll: Unroll, networks: ActorCriticNetworks, window: Window, chosen: jax.Array
) -> tuple[PolicyValue, Minibatch]:
    """Returns outputs and transitions `[1, B]`, chosen among all environments and times."""

    def choose(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, *leaf.shape[2:])[chosen][None]

    rows = jax.tree.map(lambda leaf: choose(leaf[:-1]), window.trajectory.env_steps)
    minibatch = jax.tree.map(choose, _as_minibatch(window.trajectory))
    # Without a memory no last action is looked at.
    outputs, _ = unroll(networks, rows, jnp.zeros_like(minibatch.action), ())
    return outputs, minibatch


def _as_minibatch(trajectory: Trajectory) -> Minibatch:
    return Minibatch(action=trajectory.action, valid=trajectory.valid, targets=trajectory.extras)
