"""Checks of how the ring runs: buffers are donated, and nothing is compiled twice."""

from sebulba.tools.check.recording import Recording, first_kept_leaf
from sebulba.tools.check.result import CheckResult, failed, judged, passed
from sebulba.tools.check.subject import Subject

DONATION = "actor and learner states are donated"
COMPILATION = "every function is compiled once"


def check_donation(subject: Subject, recording: Recording) -> CheckResult:
    """Looks whether the states that cycles began with are deleted, of learner and of actors."""
    failure = recording.kept_learner_leaf
    for actor, device in zip(subject.ring.actors, subject.ring.actor_devices, strict=True):
        state = actor.actor_state
        actor.run_cycle(subject.ring.learner.networks_on(device), 0)
        kept = first_kept_leaf(f"the state of actor {actor.actor_id}", state)
        failure = failure or kept
    if failure is not None:
        failure = f"{failure}: expected its buffer to be donated and deleted, got it alive"
    return judged(
        DONATION, failure, f"{recording.num_cycles} learner cycles, a cycle of each actor"
    )


def check_compilation(recording: Recording) -> CheckResult:
    """Looks at what was compiled in cycles that called nothing new."""
    if recording.late_compilations:
        names = ", ".join(dict.fromkeys(recording.late_compilations))
        return failed(
            COMPILATION,
            f"{names}: expected nothing to compile in a cycle like earlier ones, got"
            f" {len(recording.late_compilations)} compilations",
        )
    return passed(
        COMPILATION,
        f"nothing more in {recording.num_cycles} cycles after each function's first call",
    )
