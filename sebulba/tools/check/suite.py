"""All checks, in the order in which they run and are printed."""

import dataclasses
import pathlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.agent_check import AgentError
from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.tools.check import acting, efficiency, learner_devices, learning, randomness
from sebulba.tools.check.recording import Recording, first_learning_cycle, record
from sebulba.tools.check.result import CheckResult, failed, passed, skipped
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject, assemble_subject

PROTOCOL = "the agent fits the environment"
PIPELINE = "actors and learner run"


def _check_learning(subject: Subject, recording: Recording) -> list[CheckResult]:
    return learning.check_learning(subject, LossSensitivity(subject, recording))


_START_CHECKS = (
    ((learner_devices.SPLITTING,), learner_devices.check_splitting),
    ((randomness.EXPLORATION,), randomness.check_exploration),
)
_RECORDING_CHECKS = (
    ((acting.ALIGNMENT,), acting.check_alignment),
    ((acting.REPLAYED,), acting.check_states),
    ((acting.FORGETTING,), acting.check_forgetting),
    (learning.LOSS_CHECKS, _check_learning),
    ((learner_devices.EQUALITY,), learner_devices.check_equality),
    ((randomness.ACTORS, randomness.ENVIRONMENTS), randomness.check_randomness),
    ((efficiency.DONATION,), efficiency.check_donation),
    ((efficiency.COMPILATION,), efficiency.check_compilation),
)
_NEED_UPDATES = (*learning.LOSS_CHECKS, learner_devices.EQUALITY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of all checks."""

    results: tuple[CheckResult, ...]
    memory_plan: str | None  # None: the ring could not be assembled

    @property
    def has_failures(self) -> bool:
        """Whether any check failed."""
        return any(result.status == "fail" for result in self.results)


def check(config: Config) -> Report:
    """Run all checks of the agent and the environment of a config.

    Raises:
        ConfigError: devices, environment or agent cannot be built from the config.
    """
    try:
        subject = assemble_subject(config)
    except ConfigError:
        raise
    except Exception as error:
        return Report(results=(failed(PROTOCOL, _describe(error)),), memory_plan=None)
    try:
        results = [
            passed(PROTOCOL, "act keeps its shapes, and its actions fit the action space"),
            *(result for each in _START_CHECKS for result in _run(*each, subject)),
            *_check_pipeline(subject),
        ]
        return Report(results=tuple(results), memory_plan=subject.memory_plan.describe())
    finally:
        subject.ring.close_environments()


def _check_pipeline(subject: Subject) -> list[CheckResult]:
    try:
        recording = record(subject)
    except ConfigError:
        raise
    except Exception as error:
        later = [name for names, _ in _RECORDING_CHECKS for name in names]
        skips = [skipped(name, f"see “{PIPELINE}”") for name in later]
        return [failed(PIPELINE, _describe(error)), *skips]
    detail = f"{recording.num_cycles} learner cycles, {recording.num_updates} updates"
    results = [passed(PIPELINE, detail)]
    has_updates = first_learning_cycle(subject) is not None
    for names, check in _RECORDING_CHECKS:
        if names[0] in _NEED_UPDATES and not has_updates:
            reason = "the agent takes no updates, so there is no gradient"
            results += [skipped(name, reason) for name in names]
        else:
            results += _run(names, check, subject, recording)
    return results


def _run(
    names: Sequence[str], check: Callable[..., CheckResult | list[CheckResult]], *args: Any
) -> list[CheckResult]:
    """Run a check; if it raises, fail the first of its names and skip the others."""
    try:
        results = check(*args)
        return results if isinstance(results, list) else [results]
    except Exception as error:
        first, *rest = names
        return [
            failed(first, _describe(error)),
            *(skipped(name, f"see “{first}”") for name in rest),
        ]


def _describe(error: Exception) -> str:
    if isinstance(error, AgentError):
        return str(error)
    what = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame of the agent or the framework is more useful than JAX's own at the end.
    ours = [each for each in frames if "site-packages" not in each.filename] or frames
    where = f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}, in {ours[-1].name}"
    return f"raised {type(error).__name__} ({where}): {what[0]}"
