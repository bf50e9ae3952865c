"""Checks of buffer donation and of recompilation."""

from sebulba.tools.check.recording import Recording, first_kept_leaf
from sebulba.tools.check.result import CheckResult, passed_unless
from sebulba.tools.check.subject import Subject

DONATION = "actor and learner states are donated"
COMPILATION = "every function is compiled once"


def check_donation(subject: Subject, recording: Recording) -> CheckResult:
    """Check that each cycle of the learner and of every actor deletes its input state."""
    leaf = recording.kept_learner_leaf
    for actor, device in zip(subject.ring.actors, subject.ring.actor_devices, strict=True):
        state = actor.actor_state
        actor.run_cycle(subject.ring.learner.networks_on(device), 0)
        leaf = leaf or first_kept_leaf(f"state of actor {actor.actor_id}", state)
    return passed_unless(
        leaf and f"{leaf}: expected the cycle to donate this buffer, got it still allocated",
        DONATION,
        f"{recording.num_cycles} learner cycles and one act cycle of each actor",
        likely_cause="no output has the shape and dtype of this leaf",
    )


def check_compilation(recording: Recording) -> CheckResult:
    """Check that cycles which call no new function compile nothing."""
    late = recording.late_compilations
    names = ", ".join(dict.fromkeys(late))
    return passed_unless(
        f"{names}: expected no compilation after the first call, got {len(late)}" if late else None,
        COMPILATION,
        f"no recompilation in {recording.num_cycles} learner cycles",
        likely_cause="a shape, dtype or static argument changes between cycles",
    )
