"""Checks of what the loss learns from a stream: which rows it uses, and which it ignores.

Each expectation changes one field in every row of one kind and recomputes losses and gradients. A
field that the loss should ignore has to leave them equal, up to rounding, and has to change them in
other rows. Nothing is asked of rows whose field has no other value that means another thing.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sebulba.agent import Agent, declared
from sebulba.check import perturbation
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Entry, Perturbation, RowMask
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.sensitivity import LossSensitivity
from sebulba.types import EnvStep

_NO_BOOTSTRAP = "the loss does not bootstrap, not even at the end of a trajectory"
_MAX_ENTRIES_TRIED = 200  # to name the row; each one costs an update


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Expectation:
    """Whether the loss has to use a field in rows of one kind, or has to ignore it."""

    field: str
    rows: RowMask
    kind: str  # name of these rows in messages
    is_used: bool


def _uses(field: str, rows: RowMask, kind: str) -> _Expectation:
    return _Expectation(field=field, rows=rows, kind=kind, is_used=True)


def _ignores(field: str, rows: RowMask, kind: str) -> _Expectation:
    return _Expectation(field=field, rows=rows, kind=kind, is_used=False)


def rewards(evidence: Evidence) -> Answer:
    """Change rewards: the loss uses those of transitions, and ignores those of resets."""
    return _examine_all(
        evidence,
        _ignores("reward", perturbation.is_reset, "reset"),
        _uses("reward", perturbation.is_terminated, "terminated"),
        _uses("reward", perturbation.is_truncated, "truncated"),
    )


def termination(evidence: Evidence) -> Answer:
    """Change terminal observations, which the loss ignores.

    A loss that learns from final observations depends on them at terminations too. It still has to
    tell a termination from a truncation, if it bootstraps.
    """
    if not declared(evidence.subject.agent, Agent, "learns_from_final_observations"):
        return _examine_all(
            evidence, _ignores("observation", perturbation.is_terminated, "terminated")
        )
    if _bootstrap_source(evidence) is None:
        return skipped(_NO_BOOTSTRAP)
    flag = _uses("terminated flag", perturbation.is_terminated, "terminated")
    return _examine_all(evidence, flag)


def masks(evidence: Evidence) -> Answer:
    """Change what acting returned in final rows, which the loss ignores."""
    return _examine_all(
        evidence,
        _ignores("action", perturbation.is_done, "done"),
        # In truncated rows, extras may hold the value to bootstrap from.
        _ignores("extras", perturbation.is_terminated, "terminated"),
        _uses("action", perturbation.is_valid, "valid"),
    )


def truncation(evidence: Evidence) -> Answer:
    """Change what the loss bootstraps from: a row's observation, or the value stored with it."""
    source = _bootstrap_source(evidence)
    if source is None:
        return skipped(_NO_BOOTSTRAP)
    # A loss may bootstrap from the observation of the last row alone, on which nothing has acted.
    # In a replay, stored values may set priorities only.
    stored = _uses("extras", perturbation.is_truncated_inside, "truncated")
    may_be_stored = source == "observation" and evidence.loss.is_on_policy
    if may_be_stored and _examine(stored, evidence).seen:
        flag = _uses("truncated flag", perturbation.is_truncated, "truncated")
        return _examine_all(evidence, stored, flag)
    return _examine_all(
        evidence,
        # Apart: a loss that bootstraps from the reset after a truncation may still be right in a
        # trajectory's last row, behind which it has no other.
        _uses(source, perturbation.is_truncated_inside, "truncated"),
        _uses(source, perturbation.is_truncated_at_boundary, "truncated first or last"),
        _ignores("observation", perturbation.is_reset_in_last_row, "reset last"),
        _uses("truncated flag", perturbation.is_truncated, "truncated"),
    )


def _examine_all(evidence: Evidence, *expectations: _Expectation) -> Answer:
    findings = [_examine(each, evidence) for each in expectations]
    failure = next((finding.failure for finding in findings if finding.failure), None)
    if failure is not None:
        return failed(failure)
    doubt = next((finding.doubt for finding in findings if finding.doubt), None)
    if doubt is not None:
        return unclear(doubt)
    seen = ", ".join(finding.seen for finding in findings if finding.seen)
    if not seen:
        reasons = [finding.not_asked for finding in findings if finding.not_asked]
        return skipped(reasons[0] if reasons else "the recorded trajectories have no such row")
    return passed(f"the loss {seen}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Finding:
    """What an expectation came to; nothing: there were no such rows."""

    seen: str = ""
    failure: str = ""
    doubt: str = ""
    not_asked: str = ""  # why


def _examine(expectation: _Expectation, evidence: Evidence) -> _Finding:
    sensitivity, rounding = evidence.loss, evidence.loss.rounding
    field, kind = expectation.field, expectation.kind
    change = Perturbation(
        field=field, rows=expectation.rows, reward_clip=evidence.subject.reward_clip
    )
    entries = list(change.entries(sensitivity.items))
    learned = [entry for entry in entries if _is_learned(entry, sensitivity)]
    if not entries or (expectation.is_used and not learned):
        # Such rows are in trajectories of earlier learner cycles only, or have no other value:
        # a space of one action, empty extras, a policy that is certain.
        return _Finding(
            not_asked=f"no {kind} row that the loss learns from has another value of the {field}"
            f" that differs by {change.describe_least()}"
        )
    changed = change.apply(sensitivity.items)
    effect = sensitivity.effect(changed)
    if expectation.is_used and effect <= rounding:
        effect = sensitivity.greatest_effect(changed)
    if not expectation.is_used and effect <= rounding and not sensitivity.uses(field):
        return _Finding(not_asked=f"the loss uses the {field} in no row")
    if (effect > rounding) == expectation.is_used:
        verb = "uses" if expectation.is_used else "ignores"
        return _Finding(seen=f"{verb} the {field} in {kind} rows")
    if effect and expectation.is_used:
        return _Finding(
            doubt=f"changing the {field} in {kind} rows changed the loss and its gradients by"
            f" {effect:.1g} of the greatest gradient only"
        )
    if not expectation.is_used and sensitivity.effect(changed, attempt=1) <= rounding:
        return _Finding(
            doubt=f"the {field} in {kind} rows changed the loss with some networks only"
        )
    entry = learned[0] if expectation.is_used else entries[0]
    if effect > rounding:
        entry = _first_with_effect(change, entries, sensitivity) or entry
        changed = change.apply(sensitivity.items, only=entry)
    verb = "use" if expectation.is_used else "ignore"
    return _Finding(
        failure=f"expected the loss to {verb} the {field} in a {kind} row"
        f" ({sensitivity.items[entry.item].place}, row {entry.row}, env {entry.env});"
        f" changing it gave {sensitivity.describe(changed)}"
    )


def _is_learned(entry: Entry, sensitivity: LossSensitivity) -> bool:
    """Whether the loss learns from an entry for sure.

    On policy, an end in row 0 belongs to the trajectory before. A replay stores the last row of a
    trajectory, and completes its last sequences, with the actor's next trajectory.
    """
    item, *later = sensitivity.items[entry.item :]
    if not sensitivity.is_on_policy:
        return any(each.actor_id == item.actor_id for each in later)
    is_before = entry.row == 0 and item.trajectory.env_steps.done[0, entry.env]
    return entry.item >= sensitivity.num_unlearned and not is_before


def _first_with_effect(
    change: Perturbation, entries: Sequence[Entry], sensitivity: LossSensitivity
) -> Entry | None:
    # The newest trajectories first: an on-policy agent learns from no others.
    newest = sorted(entries, key=lambda entry: -entry.item)[:_MAX_ENTRIES_TRIED]
    items = sensitivity.items
    return next(
        (each for each in newest if sensitivity.has_effect(change.apply(items, only=each))), None
    )


def _bootstrap_source(evidence: Evidence) -> str | None:
    """Return what the loss bootstraps from: the observation or the extras of a row; None: neither.

    A loss bootstraps if it tells terminations from truncations, or if it does so at the end of its
    rows: if it uses observation or extras of the last row that it uses at all, but not its action.
    """
    sensitivity, length = evidence.loss, evidence.subject.run_spec.trajectory_length
    items = sensitivity.items
    num_rows = 1 + max(item.cycle for item in items) * length + length

    def changed(field: str, row: int) -> list[RecordedTrajectory]:
        return _changed_at_row(field, row, items, length)

    for row in reversed(range(num_rows)):
        for field in ("observation", "extras"):
            if not sensitivity.has_effect(changed(field, row)):
                continue
            is_certain = _tells_ends_apart(sensitivity)
            if not is_certain and sensitivity.has_effect(changed("action", row)):
                return None
            # All units of the recorded networks may be dead, so other ones are asked as well.
            if field == "extras" and any(
                sensitivity.greatest_effect(changed("observation", later)) > sensitivity.rounding
                for later in range(row, num_rows)
            ):
                return "observation"
            return field
    return None


def _tells_ends_apart(sensitivity: LossSensitivity) -> bool:
    for field, rows in (
        ("terminated flag", perturbation.is_terminated),
        ("truncated flag", perturbation.is_truncated),
    ):
        change = Perturbation(field=field, rows=rows)
        if sensitivity.has_effect(change.apply(sensitivity.items)):
            return True
    return False


def _changed_at_row(
    field: str, row: int, items: Sequence[RecordedTrajectory], length: int
) -> list[RecordedTrajectory]:
    """Return the trajectories with a field changed in one row of every actor's stream."""

    def changed(item: RecordedTrajectory) -> RecordedTrajectory:
        def rows(env_steps: EnvStep) -> np.ndarray:
            mask = perturbation.is_valid(env_steps)
            number = item.cycle * length + np.arange(len(mask))
            return mask & (number == row)[:, None]

        return Perturbation(field=field, rows=rows).apply([item])[0]

    return [changed(item) for item in items]


REWARDS = Question(
    name="rewards",
    ask=rewards,
    property="the loss credits a reward to the action before it",
    needs=Needs.GRADIENT,
    perturbs="the sign of rewards in reset, terminated and truncated rows",
    proof=("by 0.1 or more, also after `reward_clip`; and rewards of other rows have an effect"),
    expects="an effect on the loss in rows that end an episode, and none in resets",
    bound=(
        "4 times what other last bits of all parameters change in the gradients, but at least "
        "1e-5, the rounding of a sum of a thousand terms, and at most 1e-3"
    ),
    likely_cause="rewards are one row off; transition t has the reward of row t + 1",
)

TERMINATION = Question(
    name="termination",
    ask=termination,
    property="the loss does not bootstrap at a termination",
    needs=Needs.GRADIENT,
    perturbs="observations of terminated rows",
    proof=(
        "by 0.2 or more in each number, and by other amounts in each; and observations of other "
        "rows have an effect"
    ),
    expects="no effect; with `learns_from_final_observations`, one of the flag",
    bound="the loss's rounding (see `rewards`)",
    likely_cause=(
        "the discount is not γ·(1 − terminated), or `learns_from_final_observations` is not set"
    ),
)

MASKS = Question(
    name="masks",
    ask=masks,
    property="the loss gives autoreset transitions weight 0",
    needs=Needs.GRADIENT,
    perturbs="actions of rows that end an episode, and extras of terminated rows",
    proof=(
        "another action; 0.2 nats of the probability of the action taken, or of another number; "
        "and those of valid rows have an effect"
    ),
    expects="no effect, and one of actions in valid rows",
    bound="the loss's rounding (see `rewards`)",
    likely_cause="a term of the loss is not masked with Trajectory.valid",
)

TRUNCATION = Question(
    name="truncation",
    ask=truncation,
    property="the loss bootstraps at a truncation",
    needs=Needs.GRADIENT,
    perturbs="observations, or stored values, of truncated rows; the flag",
    proof="the same change has an effect in the last row that the loss uses",
    expects=(
        "an effect in truncated rows, first, last and between; none of a reset in the last row"
    ),
    bound="the loss's rounding (see `rewards`)",
    likely_cause="it bootstraps from the reset row after it, or is taken for a termination",
)
