"""Checks of buffer donation and of recompilation."""

from sebulba.tools.check.names import COMPILATION, DONATION
from sebulba.tools.check.recording import Recording, first_kept_leaf
from sebulba.tools.check.result import CheckResult, passed_unless
from sebulba.tools.check.subject import Subject


def check_donation(subject: Subject, recording: Recording) -> CheckResult:
    """Check that each cycle of the learner and of every actor deletes its input state."""
    leaf = recording.kept_learner_leaf
    for actor, device in zip(subject.ring.actors, subject.ring.actor_devices, strict=True):
        state = actor.actor_state
        actor.run_cycle(subject.ring.learner.networks_on(device), 0)
        leaf = leaf or first_kept_leaf(f"state of actor {actor.actor_id}", state)
    failure = leaf and f"{leaf}: expected the cycle to donate this buffer, got it still allocated"
    detail = f"{recording.num_cycles} learner cycles and one act cycle of each actor"
    cause = "no output has the shape and dtype of this leaf"
    return passed_unless(failure, DONATION, detail, cause)


def check_compilation(subject: Subject, recording: Recording) -> CheckResult:
    """Check that cycles which call no new function compile nothing."""
    del subject
    late = recording.late_compilations
    failure = f"{', '.join(dict.fromkeys(late))}: expected no compilation after the first call"
    detail = f"no recompilation in {recording.num_cycles} learner cycles"
    cause = "a shape, dtype or static argument changes between cycles"
    got = f"{failure}, got {len(late)}" if late else None
    return passed_unless(got, COMPILATION, detail, cause)
