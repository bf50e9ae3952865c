"""Whether later rewards and values to bootstrap from have the declared discount in the loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory, Recording
from sebulba.check.result import (
    Answer,
    as_numpy,
    failed,
    passed,
    skipped,
    unclear,
)
from sebulba.check.sensitivity import LossSensitivity
from sebulba.check.subject import Subject
from sebulba.check.training import OF_REWARDS, in_truncated_steps
from sebulba.check.trees import flat, leaf_names, with_leaf
from sebulba.types import Clock, Networks, PyTree, Trajectory

_SMALL_REWARD = 0.05  # losses may be quadratic within a bound only
_MAX_ERROR_OF_DISCOUNT = 2e-3
_GREAT_REWARD = 50.0  # far above any value
_FACTOR_OF_PARAMETERS = 0.3
_MIN_COSINE = 0.9999
_MAX_OUTPUTS = 64  # of a network, as biases


def discount(evidence: Evidence) -> Answer:
    """Measure the weight of a reward one transition later, or of a value to bootstrap from."""
    subject, sensitivity = evidence.subject, evidence.loss
    declared = subject.discounts
    if not declared:
        return skipped("the agent has no setting `discount`")
    if sensitivity.is_on_policy:
        return _discount_of_rewards(subject, evidence.recording, declared)
    if subject.reward_clip is not None:
        # Beyond the bound, more of a reward would not move a target.
        sensitivity = evidence.loss_with(reward_clip=None)
    return _discount_of_targets(subject, sensitivity, declared)


def _discount_of_rewards(subject: Subject, recording: Recording, declared: list[float]) -> Answer:
    """Learn from two equal transitions, and add to the reward of the first, then of the second.

    Equal transitions have the same gradient X of their estimates. A reward of the first transition
    moves the gradient by X, and one of the second by (1 + w)·X, where w is γλ or γ, or between them
    if policy and values have a λ each. No setting says which λ a loss has by itself.
    """
    length = subject.run_spec.trajectory_length
    if length < 2:
        return skipped("expected trajectories of two transitions or more")
    # Without memory, equal rows have equal estimates.
    agent, run_spec = subject.agent_on(
        1, core="lstm", core_options={}, lstm_size=None, **OF_REWARDS
    )
    networks = agent.init_networks(jax.random.key(subject.config.seed))
    trajectory, state = _two_equal_transitions(subject, agent, networks, recording)

    @jax.jit
    def compute(reward: jax.Array) -> PyTree:
        env_steps = dataclasses.replace(trajectory.env_steps, reward=reward)
        changed = dataclasses.replace(trajectory, env_steps=env_steps)
        experience = agent.init_experience(networks, run_spec.num_streams)
        for actor in range(run_spec.trajectories_per_cycle):
            actor_id = jnp.int32(actor % run_spec.num_actors)
            experience = agent.update_experience(
                networks, experience, state, state, changed, actor_id
            )
        key = jax.random.key(subject.config.seed)
        return jax.grad(agent.loss, has_aux=True)(networks, experience, key, Clock.at())[0]

    def gradients(row: int, reward: float) -> list[np.ndarray]:
        """Return those of all leaves together, and then of each leaf."""
        rewards = np.array(trajectory.env_steps.reward)
        rewards[row] += reward
        grads = compute(jnp.asarray(rewards))
        return [flat(grads), *map(flat, jax.tree.leaves(grads))]

    changes = ((1, 0.0), (1, _SMALL_REWARD), (2, _SMALL_REWARD), (2, 2.0 * _SMALL_REWARD))
    weights = [_weight(*each) for each in zip(*(gradients(*each) for each in changes), strict=True)]
    # Policy and values may have a λ each, and the policy's may be 0 or no setting.
    names = leaf_names("gradient", networks)
    for name, weight in zip(names, weights[1:], strict=True):
        if weight is not None and not _is_between(weight, 0.0, max(declared)):
            return failed(
                f"{name} (trajectory.env_steps.reward in row 2, all envs):"
                " expected the weight γλ between 0 and agent.discount for the transition of row 0,"
                f" got {weight:.4f}"
            )
    weight = weights[0]
    if weight is None:
        linear = sum(each is not None for each in weights[1:])
        return skipped(
            "the gradients of all leaves together are not linear in single rewards; of the"
            f" {len(names)} leaves alone, {linear} are, with weights between 0 and agent.discount"
        )
    lambdas = subject.lambdas
    least, greatest = min(declared) * min(lambdas, default=0.0), max(declared)
    described = f"a reward one transition later has the weight {weight:.4f}"
    if not _is_between(weight, least, greatest):
        return failed(
            "trajectory.env_steps.reward (row 2, all envs): expected the weight γλ"
            f" {_range(least, greatest)} for the transition of row 0 (agent.discount {greatest:g}),"
            f" got {weight:.4f}"
        )
    if not lambdas and weight < min(declared) - _MAX_ERROR_OF_DISCOUNT:
        return unclear(f"{described}, right for a λ of {weight / greatest:.3f} that is no setting")
    return passed(described)


def _weight(
    base: np.ndarray, first: np.ndarray, second: np.ndarray, double: np.ndarray
) -> float | None:
    """Return the weight of the reward of a second transition for the first one.

    Args:
        base: gradients of equal transitions.
        first: with more reward of the first transition.
        second: with more reward of the second one.
        double: with twice as much more.

    Returns:
        None: the gradients are not linear in rewards, or have no direction.
    """
    first, second, double = first - base, second - base, double - base
    if base.size < 2 or not _is_measurable(first, second, base) or not _is_linear(second, double):
        return None
    return float(first @ second / (first @ first)) - 1.0


def _is_between(weight: float, least: float, greatest: float) -> bool:
    return least - _MAX_ERROR_OF_DISCOUNT <= weight <= greatest + _MAX_ERROR_OF_DISCOUNT


def _two_equal_transitions(
    subject: Subject, agent: Agent, networks: Networks, recording: Recording
) -> tuple[Trajectory, PyTree]:
    """Return a trajectory whose rows are all the same and terminate from row 2 on."""
    spec = subject.run_spec
    recorded = recording.trajectories[0].trajectory.env_steps
    shape = recorded.reward.shape

    def everywhere(leaf: jax.Array, length: int) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(leaf)[:1], (length, shape[1], *leaf.shape[1:]))

    row = jax.tree.map(
        lambda leaf: jnp.broadcast_to(jnp.asarray(leaf[0, :1]), leaf[0].shape), recorded
    )
    row = dataclasses.replace(
        row,
        reward=jnp.full(shape[1], 0.1, jnp.float32),
        **{name: jnp.zeros(shape[1], bool) for name in ("terminated", "truncated", "is_first")},
    )
    actor_networks = agent.actor_networks(networks)
    state = agent.init_actor_state(
        actor_networks, spec.num_streams, jax.random.key(subject.config.seed), 0
    )
    action, extras, _ = jax.jit(lambda *args: agent.act(*args, greedy=False))(
        actor_networks, state, row
    )
    length = spec.trajectory_length
    env_steps = jax.tree.map(lambda leaf: everywhere(leaf, length + 1), row)
    terminated = jnp.broadcast_to((jnp.arange(length + 1) >= 2)[:, None], shape)
    trajectory = Trajectory(
        env_steps=dataclasses.replace(env_steps, terminated=terminated),
        action=everywhere(action, length),
        extras=jax.tree.map(lambda leaf: everywhere(leaf, length), extras),
    )
    return trajectory, state


def _discount_of_targets(
    subject: Subject, sensitivity: LossSensitivity, declared: list[float]
) -> Answer:
    """Add a constant to all rewards, then to the values that a target network gives.

    The latter is a shift of the target network's last bias: of a leaf without a gradient that moves
    the gradients as rewards do, γⁿ / (1 + … + γⁿ⁻¹) times as far. If no setting is n, episodes have
    one step, whose targets are a reward and γ times a value.
    """
    num_rewards = subject.setting("n_step")
    if isinstance(num_rewards, int) and not subject.lambdas:
        items = [_without_ends(item) for item in sensitivity.items]
    else:
        num_rewards = 1
        items = in_truncated_steps(
            sensitivity.items, lambda item: 0.2 * item.trajectory.env_steps.reward[1:]
        )
    # Small values have small TD errors, where a Huber loss is quadratic.
    networks = jax.tree.map(
        lambda leaf: (
            leaf * jnp.asarray(_FACTOR_OF_PARAMETERS, leaf.dtype)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        sensitivity.networks,
    )
    leaves, names = jax.tree.leaves(networks), leaf_names("networks", networks)
    key = jax.random.key(subject.config.seed)

    def gradient(*, reward: float = 0.0, leaf: int = 0, shift: float = 0.0) -> PyTree:
        """Return the gradients with this much more of every reward, and of one leaf."""
        shifted = networks
        if shift:
            shifted = with_leaf(networks, leaf, lambda old: old + jnp.asarray(shift, old.dtype))
        experience = sensitivity.experience([_with_reward(item, reward) for item in items])
        return sensitivity.loss_and_gradients(shifted, experience, key, sensitivity.clock())[1]

    grads = gradient()
    base = flat(grads)
    by_reward, double = (
        flat(gradient(reward=size)) - base for size in (_SMALL_REWARD, 2 * _SMALL_REWARD)
    )
    if not _is_measurable(by_reward, by_reward, base) or not _is_linear(by_reward, double):
        return skipped("the gradients are not linear in the rewards")

    def reward_scale() -> float:
        """Return the factor that the loss multiplies rewards by: values move targets without one.

        A lower output of the learned network moves the gradients as a greater target does.
        """
        for index, leaf in enumerate(leaves):
            if np.any(jax.tree.leaves(grads)[index]) and leaf.size <= _MAX_OUTPUTS:
                by_output = flat(gradient(leaf=index, shift=-_SMALL_REWARD)) - base
                if _is_measurable(by_reward, by_output, base):
                    num_times = sum(max(declared) ** k for k in range(num_rewards))
                    return float(by_reward @ by_output / (by_output @ by_output)) / num_times
        return 1.0

    shares = [each**num_rewards / sum(each**k for k in range(num_rewards)) for each in declared]
    least, greatest, tolerance = min(shares), max(shares), 2 * _MAX_ERROR_OF_DISCOUNT
    for index, grad in enumerate(jax.tree.leaves(as_numpy(grads))):
        if np.any(grad) or not jnp.issubdtype(leaves[index].dtype, jnp.floating):
            continue
        by_leaf = flat(gradient(leaf=index, shift=_SMALL_REWARD)) - base
        # A bootstrap value with the wrong sign has the opposite direction.
        if not any(_is_measurable(by_reward, sign * by_leaf, base) for sign in (1.0, -1.0)):
            continue
        # Hidden units, actions, and one of several values of which the least counts, are bounded.
        far = [
            float(np.linalg.norm(flat(gradient(leaf=index, shift=size)) - base))
            / float(np.linalg.norm(flat(gradient(reward=size)) - base))
            for size in (_GREAT_REWARD, -_GREAT_REWARD)
        ]
        if min(far) < max(0.5 * max(far), 0.2 * least):
            continue
        weight = float(by_reward @ by_leaf / (by_reward @ by_reward))
        if not least - tolerance <= weight <= greatest + tolerance:
            weight *= reward_scale()
        if least - tolerance <= weight <= greatest + tolerance:
            return passed(f"{names[index]}: a bootstrap value has the weight {weight:.4f}")
        return failed(
            f"{names[index]} (all sampled rows): expected a bootstrap value to have"
            f" {_range(least, greatest)} times the weight of the rewards (agent.discount"
            f" {max(declared):g}), got {weight:.4f}"
        )
    return skipped("no leaf without a gradient shifts the bootstrap values alone")


def _without_ends(item: RecordedTrajectory) -> RecordedTrajectory:
    rows = item.trajectory.env_steps
    nowhere = np.zeros_like(rows.terminated)
    is_first = nowhere.copy()
    is_first[0] = item.cycle == 0
    return item.with_rows(
        reward=0.2 * rows.reward, terminated=nowhere, truncated=nowhere, is_first=is_first
    )


def _with_reward(item: RecordedTrajectory, reward: float) -> RecordedTrajectory:
    return item.with_rows(reward=(item.trajectory.env_steps.reward + reward).astype(np.float32))


def _range(least: float, greatest: float) -> str:
    return f"{least:.4f} … {greatest:.4f}" if least < greatest else f"{least:.4f}"


def _is_measurable(left: np.ndarray, right: np.ndarray, base: np.ndarray) -> bool:
    """Whether both changes exceed rounding by far, and have one direction."""
    sizes = [float(np.linalg.norm(each)) for each in (left, right)]
    if min(sizes) < 1e-4 * max(float(np.linalg.norm(base)), 1e-6):
        return False
    return float(left @ right) / (sizes[0] * sizes[1]) > _MIN_COSINE


def _is_linear(once: np.ndarray, twice: np.ndarray) -> bool:
    return float(np.linalg.norm(twice - 2.0 * once)) < 0.01 * float(np.linalg.norm(twice))


DISCOUNT = Question(
    name="discount",
    ask=discount,
    property="later rewards have the declared discount",
    needs=Needs.UPDATES,
    perturbs=(
        f"adds {_SMALL_REWARD:g} to the reward of one of two equal transitions, or to all rewards "
        "and to a target network's output"
    ),
    proof="the gradients are linear in rewards, to 1%, and have one direction",
    expects="the weight γλ, or γⁿ of a bootstrap value",
    bound=(
        f"{_MAX_ERROR_OF_DISCOUNT:g}: three digits of differences of float32 gradients; γ of 0.99 "
        "and 0.98 differ by five times as much"
    ),
    likely_cause="the discount is applied twice, or not at all",
)
