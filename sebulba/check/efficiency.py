"""Questions about buffer donation and recompilation."""

from sebulba.check.evidence import Evidence
from sebulba.check.result import Answer, failed, passed, passed_unless


def donation(evidence: Evidence) -> Answer:
    """Check that each learner cycle deletes its input state."""
    leaf, num_cycles = evidence.recording.kept_leaf, evidence.recording.num_cycles
    failure = leaf and f"{leaf}: expected the cycle to donate this buffer, got it still allocated"
    return passed_unless(failure, f"{num_cycles} learner cycles")


def compilation(evidence: Evidence) -> Answer:
    """Check that cycles which call no new function compile nothing."""
    late = evidence.recording.late_compilations
    if late:
        functions = ", ".join(dict.fromkeys(late))
        return failed(f"{functions}: expected no compilation after the first call, got {len(late)}")
    return passed(f"no recompilation in {evidence.recording.num_cycles} learner cycles")
