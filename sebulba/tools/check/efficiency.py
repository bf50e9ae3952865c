"""Checks of buffer donation and of recompilation."""

from sebulba.tools.check.names import COMPILATION, DONATION
from sebulba.tools.check.recording import Recording
from sebulba.tools.check.result import CheckResult, passed_unless
from sebulba.tools.check.subject import Subject


def check_donation(subject: Subject, recording: Recording) -> CheckResult:
    """Check that each cycle of the learner and of every actor deletes its input state."""
    del subject
    leaf = recording.kept_leaf
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
