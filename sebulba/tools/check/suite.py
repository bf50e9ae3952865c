"""All checks of a config, in order."""

import dataclasses
import pathlib
import traceback
from collections.abc import Callable, Iterable

from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.tools.check import acting, learning, placing, randomness, running
from sebulba.tools.check.influence import Lesson
from sebulba.tools.check.recording import Recording, first_learning_cycle, record
from sebulba.tools.check.result import CheckResult, failed, passed, skipped
from sebulba.tools.check.subject import Subject, assemble_subject

PROTOCOL = "agent and environment fit together"
PIPELINE = "the pipeline runs"

_ON_RECORDING = (
    acting.ALIGNMENT,
    acting.REPLAYED,
    acting.FORGETTING,
    *learning.LOSS_CHECKS,
    randomness.ACTORS,
    randomness.ENVIRONMENTS,
    placing.EQUALITY,
    running.DONATION,
    running.COMPILATION,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What all checks found."""

    results: tuple[CheckResult, ...]
    memory_plan: str | None  # None: nothing could be put together

    @property
    def has_failures(self) -> bool:
        """Whether there is a ✗."""
        return any(result.status == "fail" for result in self.results)

    def result(self, name: str) -> CheckResult:
        """Returns the row of that name."""
        return next(result for result in self.results if result.name == name)


def check(config: Config) -> Report:
    """Checks the agent and the environment of a config.

    Raises:
        ConfigError: devices, environment or agent cannot be as the config says.
    """
    try:
        subject = assemble_subject(config)
    except ConfigError:
        raise
    except Exception as error:
        return Report(results=(failed(PROTOCOL, _describe(error)),), memory_plan=None)
    try:
        return Report(
            results=(
                passed(
                    PROTOCOL, "the agent keeps its shapes, and its actions suit the environment"
                ),
                *_check_states(subject),
                *_check_pipeline(subject),
            ),
            memory_plan=subject.memory_plan.describe(),
        )
    finally:
        subject.ring.close_environments()


def _check_states(subject: Subject) -> list[CheckResult]:
    return [
        *_guarded([placing.SPLITTING], lambda: [placing.check_splitting(subject)]),
        *_guarded([randomness.EXPLORATION], lambda: [randomness.check_exploration(subject)]),
    ]


def _check_pipeline(subject: Subject) -> list[CheckResult]:
    try:
        recording = record(subject)
    except ConfigError:
        raise
    except Exception as error:
        reason = "the pipeline did not run"
        return [
            failed(PIPELINE, _describe(error)),
            *(skipped(name, reason) for name in _ON_RECORDING),
        ]
    detail = f"{recording.num_cycles} learner cycles, {recording.num_updates} updates"
    return [passed(PIPELINE, detail), *_check_recording(subject, recording)]


def _check_recording(subject: Subject, recording: Recording) -> list[CheckResult]:
    randomness_names = [randomness.ACTORS, randomness.ENVIRONMENTS]
    return [
        *_guarded([acting.ALIGNMENT], lambda: [acting.check_alignment(subject, recording)]),
        *_guarded([acting.REPLAYED], lambda: [acting.check_states(subject, recording)]),
        *_guarded([acting.FORGETTING], lambda: [acting.check_forgetting(subject, recording)]),
        *_check_updates(subject, recording),
        *_guarded(randomness_names, lambda: randomness.check_randomness(subject, recording)),
        *_guarded([running.DONATION], lambda: [running.check_donation(subject, recording)]),
        *_guarded([running.COMPILATION], lambda: [running.check_compilation(recording)]),
    ]


def _check_updates(subject: Subject, recording: Recording) -> list[CheckResult]:
    names = [*learning.LOSS_CHECKS, placing.EQUALITY]
    if first_learning_cycle(subject) is None:
        reason = "the agent takes no updates: there is no gradient to look at"
        return [skipped(name, reason) for name in names]
    return [
        *_guarded(
            list(learning.LOSS_CHECKS),
            lambda: learning.check_learning(subject, Lesson(subject, recording)),
        ),
        *_guarded([placing.EQUALITY], lambda: [placing.check_equality(subject, recording)]),
    ]


def _guarded(names: list[str], check: Callable[[], Iterable[CheckResult]]) -> Iterable[CheckResult]:
    """Returns what a check found; an exception is a ✗ of the first of its rows."""
    try:
        return list(check())
    except Exception as error:
        first, *rest = names
        return [
            failed(first, _describe(error)),
            *(skipped(name, f"see “{first}”") for name in rest),
        ]


def _describe(error: Exception) -> str:
    what = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    # JAX's own frames, at the end, tell less than the last one of the agent or the framework.
    ours = [each for each in frames if "site-packages" not in each.filename] or frames
    where = f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}, in {ours[-1].name}"
    return f"raised {type(error).__name__} ({where}): {what[0]}"
