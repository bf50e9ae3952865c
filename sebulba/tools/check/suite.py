"""All checks, in the order in which they run and are printed."""

import dataclasses
import functools
import pathlib
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence

from sebulba.agent_check import AgentError
from sebulba.config import Config
from sebulba.devices.mapping import is_jit_disabled
from sebulba.errors import ConfigError
from sebulba.tools.check import (
    acting,
    behaviour,
    direction,
    efficiency,
    learner_devices,
    learning,
    memory,
    names,
    priorities,
    randomness,
    samples,
    sampling,
    scale,
    updates,
    values,
)
from sebulba.tools.check.names import PIPELINE, PROTOCOL
from sebulba.tools.check.recording import Recording, first_learning_cycle, record
from sebulba.tools.check.result import CheckResult, failed, passed, skipped
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject, assemble_subject

Results = CheckResult | list[CheckResult]
OnProgress = Callable[[str], None]
"""Called with the name of a check before it begins."""


class _Context:
    """What checks share; recorded and compiled when the first of them needs it."""

    def __init__(self, subject: Subject):
        self.subject = subject

    @functools.cached_property
    def recording(self) -> Recording:
        return record(self.subject)

    @functools.cached_property
    def sensitivity(self) -> LossSensitivity:
        return LossSensitivity(self.subject, self.recording)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Check:
    names: tuple[str, ...]  # of its results
    run: Callable[[_Context], Results]
    needs_updates: bool = False
    needs_jit: bool = False


def _learns(*names: str, run: Callable[[Subject, LossSensitivity], Results]) -> _Check:
    """Return a check that needs losses and gradients."""

    def checked(context: _Context) -> Results:
        if not context.sensitivity.has_gradient:
            reason = "the recorded trajectories gave no gradient"
            return [skipped(name, reason) for name in names]
        return run(context.subject, context.sensitivity)

    return _Check(names=names, run=checked, needs_updates=True)


def _acts(*names: str, run: Callable[[Subject, Recording], Results]) -> _Check:
    """Return a check that needs recorded trajectories."""
    return _Check(names=names, run=lambda context: run(context.subject, context.recording))


_START_CHECKS = (
    _Check(
        names=(learner_devices.SPLITTING,),
        run=lambda context: learner_devices.check_splitting(context.subject),
    ),
    _Check(
        names=(randomness.EXPLORATION,),
        run=lambda context: randomness.check_exploration(context.subject),
    ),
)
# The quick ones first.
_RECORDING_CHECKS = (
    _acts(acting.ALIGNMENT, run=acting.check_alignment),
    _acts(acting.REPLAYED, run=acting.check_states),
    _acts(acting.FORGETTING, run=acting.check_forgetting),
    *(
        _learns(name, run=functools.partial(learning.check_property, name))
        for name in learning.PROPERTIES
    ),
    _learns(memory.MEMORY, run=memory.check_memory),
    _learns(behaviour.CORRECTION, run=behaviour.check_correction),
    _acts(randomness.ACTORS, randomness.ENVIRONMENTS, run=randomness.check_randomness),
    _acts(sampling.STEPS, sampling.GREEDY, sampling.BEHAVIOUR, run=sampling.check_sampling),
    _Check(
        names=(acting.LEGAL,),
        run=lambda context: acting.check_legal(
            context.subject,
            context.recording,
            context.sensitivity if first_learning_cycle(context.subject) is not None else None,
        ),
    ),
    _Check(
        names=(efficiency.DONATION,),
        run=lambda context: efficiency.check_donation(context.subject, context.recording),
        needs_jit=True,
    ),
    _Check(
        names=(efficiency.COMPILATION,),
        run=lambda context: efficiency.check_compilation(context.subject, context.recording),
        needs_jit=True,
    ),
    dataclasses.replace(
        _learns(updates.UPDATES, run=lambda *_: []),
        run=lambda context: updates.check_updates(
            context.subject, context.recording, context.sensitivity
        ),
    ),
    dataclasses.replace(
        _learns(
            direction.PREFERENCE,
            direction.ENTROPY,
            run=direction.check_direction,
        ),
        needs_jit=True,  # hundreds of updates
    ),
    dataclasses.replace(
        _learns(values.VALUES, values.SYMMETRY, values.ADVANTAGES, run=values.check_values),
        needs_jit=True,
    ),
    _learns(priorities.PRIORITIES, run=priorities.check_priorities),
    _learns(samples.EPOCHS, run=samples.check_epochs),
    _learns(scale.PADDING, run=scale.check_padding),
    dataclasses.replace(
        _learns(scale.DISCOUNT, run=lambda *_: []),
        run=lambda context: scale.check_discount(
            context.subject, context.recording, context.sensitivity
        ),
    ),
    _Check(
        names=(learner_devices.EQUALITY, learner_devices.REPLICAS),
        run=lambda context: learner_devices.check_equality(context.subject, context.recording),
        needs_updates=True,
        needs_jit=True,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of all checks."""

    results: tuple[CheckResult, ...]
    memory_plan: str | None  # None: the ring could not be assembled

    @property
    def has_failures(self) -> bool:
        """Whether any check failed."""
        return any(result.status == "fail" for result in self.results)


def check(
    config: Config,
    *,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda name: None,
) -> Report:
    """Run the checks of the agent and the environment of a config.

    Args:
        config: of a run.
        only: short names of the checks to run, as in `names.SHORT_NAMES`; empty: all. The protocol
            and, if they need it, the pipeline are checked in any case.
        on_progress: called with the name of a check before it begins.

    Raises:
        ConfigError: devices, environment or agent cannot be built from the config, or there is no
            check of a name.
    """
    wanted = names.resolve(only)
    on_progress(PROTOCOL)
    try:
        subject = assemble_subject(config)
    except ConfigError:
        raise
    except Exception as error:
        return Report(results=(failed(PROTOCOL, _describe(error)),), memory_plan=None)
    try:
        results = tuple(results_of(subject, wanted, on_progress))
        return Report(results=results, memory_plan=subject.memory_plan.describe())
    finally:
        subject.close()


def results_of(
    subject: Subject,
    wanted: frozenset[str] = frozenset(names.SHORT_NAMES.values()),
    on_progress: OnProgress = lambda name: None,
) -> Iterator[CheckResult]:
    """Yield the results of the checks with these names, each as soon as it is known."""
    context = _Context(subject)
    yield passed(PROTOCOL, "act keeps its shapes, and its actions fit the action space")
    yield from _run_all(_START_CHECKS, context, wanted, on_progress)
    later = [name for each in _RECORDING_CHECKS for name in each.names if name in wanted]
    if not later and PIPELINE not in wanted:
        return
    on_progress(PIPELINE)
    try:
        recording = context.recording
    except ConfigError:
        raise
    except Exception as error:
        yield failed(PIPELINE, _describe(error))
        yield from (skipped(name, f"see “{PIPELINE}”") for name in later)
        return
    yield passed(
        PIPELINE, f"{recording.num_cycles} learner cycles, {recording.num_updates} updates"
    )
    yield from _run_all(_RECORDING_CHECKS, context, wanted, on_progress)


def _run_all(
    checks: Sequence[_Check], context: _Context, wanted: frozenset[str], on_progress: OnProgress
) -> Iterator[CheckResult]:
    has_updates = first_learning_cycle(context.subject) is not None
    broken: str | None = None  # the check whose error ends all others that need the loss
    for each in checks:
        if not wanted.intersection(each.names):
            continue
        on_progress(each.names[0])
        if each.needs_updates and not has_updates:
            reason = "the agent takes no updates, so there is no gradient"
        elif each.needs_jit and is_jit_disabled():
            reason = "JAX_DISABLE_JIT is set"
        elif each.needs_updates and broken:
            reason = f"see “{broken}”"
        else:
            found, raised = _run(each, context)
            yield from (result for result in found if result.name in wanted)
            if raised and each.needs_updates and "sensitivity" not in vars(context):
                broken = each.names[0]
            continue
        yield from (skipped(name, reason) for name in each.names if name in wanted)


def _run(check: _Check, context: _Context) -> tuple[list[CheckResult], bool]:
    """Run a check; if it raises, fail the first of its names and skip the others."""
    try:
        results = check.run(context)
        return (results if isinstance(results, list) else [results]), False
    except Exception as error:
        first, *rest = check.names
        return [
            failed(first, _describe(error)),
            *(skipped(name, f"see “{first}”") for name in rest),
        ], True


def _describe(error: Exception) -> str:
    if isinstance(error, AgentError):
        return str(error)
    what = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame of the agent or the framework is more useful than JAX's own at the end.
    ours = [each for each in frames if "site-packages" not in each.filename] or frames
    where = f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}, in {ours[-1].name}"
    return f"raised {type(error).__name__} ({where}): {what[0]}"
