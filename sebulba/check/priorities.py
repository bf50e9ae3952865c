"""Checks of the priorities that a loss sets in a replay of `sebulba.toolkit`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import other_rewards
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, failed, passed, skipped
from sebulba.check.sensitivity import MAX_ROUNDING, LossSensitivity
from sebulba.check.subject import Subject
from sebulba.check.training import Items, in_steps
from sebulba.check.trees import flat, is_replay
from sebulba.pytree import leaf_name
from sebulba.toolkit.replay import ReplayState
from sebulba.types import Experience, Networks

_MAX_SEQUENCES_TRIED = 16
_GREAT_REWARD = 1e4  # far above any value
_MAX_ROWS_TRIED = 128  # of a sequence
_MIN_SHARE_OF_PRIORITY = 0.05  # of a sequence of great rewards; less is no change
_BATCH_SIZE = 256  # a weight may be relative to the greatest of its batch
_NUM_BATCHES = 4
_TIMES_AS_LIKELY = 9.0
_MAX_RELATIVE_ERROR = 0.05  # of a priority


def priorities(evidence: Evidence) -> Answer:
    """Change rewards in a replay, and see which priorities a loss sets otherwise.

    Rewards count as they are: beyond a bound, greater ones would be the same.
    """
    subject = evidence.subject
    is_clipped = subject.reward_clip is not None
    sensitivity = evidence.loss_with(reward_clip=None) if is_clipped else evidence.loss
    priorities = _Priorities(subject, sensitivity, sensitivity.items)
    if priorities.replay is None:
        return skipped("the experience has no replay of sebulba.toolkit")
    if priorities.path is None:
        return skipped("the rows of the replay have no reward")
    before = priorities.mass(priorities.rewards)
    drawn = np.argwhere(before != np.asarray(priorities.replay.mass))
    if not len(drawn):
        return skipped("a loss changes no priority")
    answer = _change_one_reward(priorities, before, drawn)
    if answer.status == "pass":
        answer = _without_errors(priorities, drawn) or answer
    mix = subject.setting("priority_mix")
    if answer.status == "pass" and isinstance(mix, float):
        episodes = _Priorities(subject, sensitivity, in_steps(sensitivity.items, 0.0))
        return _compare_mix(episodes, mix) or answer
    return answer


def importance(evidence: Evidence) -> Answer:
    """Make the rows of some streams likelier to be drawn: with β = 1, they count as before."""
    subject = evidence.subject
    settings = {"importance_exponent": 1.0, "batch_size": _BATCH_SIZE}
    if not subject.setting("priority_exponent") or None in map(subject.setting, settings):
        return skipped(f"the agent has no priorities, or not the settings {', '.join(settings)}")
    loss = evidence.loss_with(reward_clip=None, **settings)
    priorities = _Priorities(subject, loss, loss.items)
    if priorities.replay is None or priorities.path is None:
        return skipped("the experience has no replay of sebulba.toolkit with rewards")
    stored = np.asarray(priorities.replay.mass) > 0.0
    is_first_half = (np.arange(len(stored)) < len(stored) // 2)[:, None]
    rewards = np.where(is_first_half, other_rewards(priorities.rewards), priorities.rewards)

    def effect(favoured: np.ndarray) -> tuple[float, float]:
        """Return how far rewards of the first half move the gradients, and their size."""
        mass = stored * np.where(favoured, np.float32(_TIMES_AS_LIKELY), np.float32(1.0))
        changes: list[np.ndarray] = []
        sizes: list[float] = []
        for draw in range(_NUM_BATCHES):
            pair = [
                priorities.gradients(each, mass, draw) for each in (priorities.rewards, rewards)
            ]
            changes.append(pair[1] - pair[0])
            sizes += [float(np.linalg.norm(each)) for each in pair]
        return float(np.linalg.norm(np.mean(changes, axis=0))), float(max(sizes))

    (likely, _), (unlikely, size) = effect(is_first_half), effect(~is_first_half)
    if unlikely <= MAX_ROUNDING * size:
        return skipped("rewards of unlikely draws change gradients by no more than rounding")
    detail = (
        f"{_TIMES_AS_LIKELY:g} times as likely draws count {likely / unlikely:.2f} times as much"
    )
    if likely <= np.sqrt(_TIMES_AS_LIKELY) * unlikely:
        return passed(detail)
    return failed(
        f"experience.mass (streams 0 … {len(stored) // 2 - 1}): expected rewards of sequences that"
        f" are {_TIMES_AS_LIKELY:g} times as likely to be drawn to count as much with"
        f" agent.importance_exponent 1, got {likely / unlikely:.2f} times as much"
    )


class _Priorities:
    """The priorities after one loss, as a function of the rewards in the replay."""

    def __init__(self, subject: Subject, sensitivity: LossSensitivity, items: Items):
        self.sensitivity, self._items = sensitivity, items
        self._experience = sensitivity.experience(items)
        self._key = jax.random.key(subject.config.seed)
        self.exponent = subject.setting("priority_exponent")
        self.replay = _replay_of(self._experience)
        paths = jax.tree_util.tree_leaves_with_path(self.replay.rows if self.replay else ())
        rewards = [(path, leaf) for path, leaf in paths if leaf_name(path).endswith("reward")]
        self.path = rewards[0][0] if len(rewards) == 1 else None
        self.rewards = np.array(rewards[0][1] if rewards else ())  # [streams, rows]

    @property
    def stride(self) -> int:
        """Rows between the starts of sequences."""
        assert self.replay is not None
        return self.rewards.shape[1] // self.replay.mass.shape[1]

    def of_mass(self, mass: Any) -> float:
        """Return the priority of a mass, which is a priority to the power of α."""
        return float(mass ** (1.0 / self.exponent))

    def initial_rows(self, stream: int, slot: int, learned: list[int]) -> list[int]:
        """Return the rows whose great rewards raise the priority of a sequence never learned from.

        Args:
            stream: of the sequence.
            slot: of the sequence.
            learned: the rows of which this is expected; rows next to them are tried as well.
        """
        num_envs = self._items[0].trajectory.action.shape[1]

        def priority(row: int) -> float:
            def reward(item: RecordedTrajectory) -> np.ndarray:
                rewards = np.zeros(item.trajectory.action.shape[:2], np.float32)
                cycle, number = divmod(row - 1, len(rewards))
                if (item.actor_id, item.cycle) == (stream // num_envs, cycle):
                    rewards[number, stream % num_envs] = _GREAT_REWARD
                return rewards

            experience = self.sensitivity.experience(in_steps(self._items, reward))
            replay = _replay_of(experience)
            assert replay is not None
            return self.of_mass(np.asarray(replay.mass)[stream, slot])

        first = max(1, 2 * learned[0] - learned[-1])
        found = {row: priority(row) for row in range(first, learned[-1] + 3)}
        least, most = min(found.values()), max(found.values())
        if most <= 2.0 * least:
            return []  # Such as the greatest priority so far, for all new sequences.
        return [row for row, each in found.items() if each > _MIN_SHARE_OF_PRIORITY * most]

    def gradients(self, rewards: np.ndarray, mass: np.ndarray, draw: int) -> np.ndarray:
        """Return the gradients with these rewards and masses, as one vector."""
        _, grads = self.sensitivity.loss_and_gradients(
            self.sensitivity.networks,
            self._experience_with(rewards, mass=jnp.asarray(mass)),
            jax.random.fold_in(self._key, draw),
            self.sensitivity.clock(),
        )
        return flat(grads)

    def mass(self, rewards: np.ndarray, networks: Networks | None = None) -> np.ndarray:
        """Return `[streams, slots]`, priorities to the power of α, after a loss.

        Args:
            rewards: `[streams, rows]`, instead of the stored ones.
            networks: None: those at the end of the recording.
        """
        networks = self.sensitivity.networks if networks is None else networks
        (_, (after, _)), _ = self.sensitivity.loss_and_gradients(
            networks, self._experience_with(rewards), self._key, self.sensitivity.clock()
        )
        replay = _replay_of(after)
        assert replay is not None
        return np.asarray(replay.mass)

    def _experience_with(self, rewards: np.ndarray, **changes: jax.Array) -> Experience:
        """Return the experience with other rewards, and with changes of other fields, in replay."""
        assert self.replay is not None
        rows = jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.asarray(rewards) if path == self.path else leaf,
            self.replay.rows,
        )
        replay = dataclasses.replace(self.replay, rows=rows, **changes)
        return jax.tree.map(
            lambda node: replay if is_replay(node) else node, self._experience, is_leaf=is_replay
        )


def _change_one_reward(priorities: _Priorities, before: np.ndarray, drawn: np.ndarray) -> Answer:
    """Change one reward at a time: it sets the priorities of its own sequences, and no others."""
    stride, stored = priorities.stride, priorities.rewards
    num_found = 0
    sequences = drawn[:: -(-len(drawn) // _MAX_SEQUENCES_TRIED)]
    # Rewards of a burn-in may have little effect, so a later one is tried, too.
    rewards_tried = [
        (int(stream), int(slot) * stride + offset)
        for stream, slot in sequences
        for offset in {1, stride, 2 * stride}
        if int(slot) * stride + offset < stored.shape[1]
    ]
    for stream, row in rewards_tried:
        rewards = stored.copy()
        rewards[stream, row] = other_rewards(rewards[stream, row])
        change = np.abs(priorities.mass(rewards) - before)
        changed = np.argwhere(change > MAX_ROUNDING * before.max())
        num_found += len(changed)
        for other_stream, other_slot in changed:
            # Sequences overlap: all that begin before the reward may have it. In one that begins
            # with its row, it may be an input of the network.
            if other_stream != stream or other_slot * stride > row:
                return failed(
                    f"experience.rows.reward (stream {stream}, row {row}): expected it to change"
                    " priorities of sequences with this reward only, got another priority for"
                    f" stream {other_stream}, row {other_slot * stride}"
                )
    if num_found:
        return passed(f"{num_found} priorities changed with their own rewards alone")
    return failed(
        f"experience.mass: expected rewards to change priorities, got the same for"
        f" {len(rewards_tried)} changed rewards",
        "priorities are not those of the TD errors",
    )


def _without_errors(priorities: _Priorities, drawn: np.ndarray) -> Answer | None:
    """Set all rewards and parameters to 0, and with them most networks' TD errors."""
    networks = jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        priorities.sensitivity.networks,
    )
    mass = priorities.mass(np.zeros_like(priorities.rewards), networks)
    wrong = [(stream, slot) for stream, slot in drawn if not mass[stream, slot] > 0.0]
    if not wrong:
        return None
    stream, slot = wrong[0]
    return failed(
        f"experience.mass (stream {stream}, row {slot * priorities.stride}): expected a priority"
        " above 0 of a sequence without TD errors, which is never drawn again otherwise, got"
        f" {mass[stream, slot]:g}",
        "a small positive number has to be added to it",
    )


def _compare_mix(priorities: _Priorities, mix: float) -> Answer | None:
    """Compare priorities of sequences with one great reward, and with nothing but great ones.

    Every episode has one step, so a reward is in one TD error. Among k errors, a single great one
    gives η + (1 − η)/k times the priority of k of them.
    """
    zeros = np.zeros_like(priorities.rewards)
    before, after = priorities.mass(zeros), priorities.mass(zeros + _GREAT_REWARD)
    for stream, slot in np.argwhere(before != after)[:_MAX_SEQUENCES_TRIED]:
        everywhere = priorities.of_mass(after[stream, slot])
        singles: dict[int, float] = {}
        first = int(slot) * priorities.stride
        for row in range(first, min(first + _MAX_ROWS_TRIED, zeros.shape[1])):
            rewards = zeros.copy()
            rewards[stream, row] = _GREAT_REWARD
            single = priorities.of_mass(priorities.mass(rewards)[stream, slot])
            if single > _MIN_SHARE_OF_PRIORITY * everywhere:
                singles[row] = single
        if len(singles) < 2:
            continue
        expected = mix + (1.0 - mix) / len(singles)
        got = float(np.mean([*singles.values()])) / everywhere
        place = f"experience.mass (stream {stream}, row {first})"
        if abs(got - expected) > _MAX_RELATIVE_ERROR:
            return failed(
                f"{place}: expected a single great TD error among {len(singles)} to give"
                f" η + (1 − η)/{len(singles)} = {expected:.3f} times the priority of"
                f" {len(singles)} such errors (agent.priority_mix {mix:g}), got {got:.3f}",
                "a sign in the mix of the greatest and the mean TD error",
            )
        learned, initial = [*singles], priorities.initial_rows(int(stream), int(slot), [*singles])
        if initial and initial != learned:
            return failed(
                f"{place}: expected great rewards of rows {_listing(learned)} to raise the priority"
                f" of a new sequence, as they do when it was learned from, got that for rows"
                f" {_listing(initial)}",
                "update_experience takes other rows of the sequence than the loss",
            )
        return passed(f"one of {len(singles)} TD errors gives {got:.2f} of the priority of all")
    return None


def _listing(rows: list[int]) -> str:
    return ", ".join(map(str, rows))


def _replay_of(experience: Experience) -> ReplayState | None:
    return next(filter(is_replay, jax.tree.leaves(experience, is_leaf=is_replay)), None)


PRIORITIES = Question(
    name="priorities",
    ask=priorities,
    property="a TD error sets the priority of its own sequence",
    needs=Needs.GRADIENT,
    perturbs="the sign of one reward in the replay at a time, without a bound on rewards",
    proof="some priority changes",
    expects=(
        "priorities of sequences with that reward to change, and no others; all to be positive; "
        "one great error to weigh as `priority_mix` says"
    ),
    bound=(
        f"1e-5 of the greatest priority, the rounding of sums; {_MAX_RELATIVE_ERROR:g} of a "
        "priority, since other errors are small beside the great one, not 0"
    ),
    likely_cause="priorities are not in the order of the sampled ids",
)

IMPORTANCE = Question(
    name="importance",
    ask=importance,
    property="likely draws count less",
    needs=Needs.TRAINING,
    perturbs=(
        f"makes the rows of half of the streams {_TIMES_AS_LIKELY:g} times as likely to be drawn, "
        "and changes their rewards"
    ),
    proof="rewards of unlikely draws have an effect beyond rounding",
    expects="as great an effect if they are likely",
    bound=(
        f"√{_TIMES_AS_LIKELY:g} = 3 times: between none, with weights, and {_TIMES_AS_LIKELY:g}, "
        "without"
    ),
    likely_cause="the loss is not multiplied by the importance weights",
)
