"""Questions about buffer donation and recompilation."""

from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
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


DONATION = Question(
    name="donation",
    ask=donation,
    property="actor and learner states are donated",
    needs=Needs.RECORDING,
    perturbs="looks which buffers of a learner cycle's input are deleted",
    proof="every learner cycle of the recording",
    expects="all of them to be",
    bound="exact",
    likely_cause="no output has the shape and dtype of this leaf",
    needs_jit=True,
)

COMPILATION = Question(
    name="compilation",
    ask=compilation,
    property="every function is compiled once",
    needs=Needs.RECORDING,
    perturbs="counts compilations in cycles that call no new function",
    proof="each actor acted twice",
    expects="none",
    bound="exact",
    likely_cause="a shape, dtype or static argument changes between cycles",
    needs_jit=True,
)
