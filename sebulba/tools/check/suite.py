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

_ON_RECORDING = (
    acting.ALIGNMENT,
    acting.REPLAYED,
    acting.FORGETTING,
    *learning.LOSS_CHECKS,
    randomness.ACTORS,
    randomness.ENVIRONMENTS,
    learner_devices.EQUALITY,
    efficiency.DONATION,
    efficiency.COMPILATION,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of all checks."""

    results: tuple[CheckResult, ...]
    memory_plan: str | None  # None: the agent breaks the protocol

    @property
    def has_failures(self) -> bool:
        """Whether any check failed."""
        return any(result.status == "fail" for result in self.results)

    def result(self, name: str) -> CheckResult:
        """Return the result of a check."""
        return next(result for result in self.results if result.name == name)


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
        protocol = passed(PROTOCOL, "act keeps its shapes, and its actions fit the action space")
        sharding = _run(learner_devices.check_splitting, subject, names=[learner_devices.SPLITTING])
        exploration = _run(randomness.check_exploration, subject, names=[randomness.EXPLORATION])
        results = (protocol, *sharding, *exploration, *_check_pipeline(subject))
        return Report(results=results, memory_plan=subject.memory_plan.describe())
    finally:
        subject.ring.close_environments()


def _check_pipeline(subject: Subject) -> list[CheckResult]:
    try:
        recording = record(subject)
    except ConfigError:
        raise
    except Exception as error:
        skips = [skipped(name, f"see “{PIPELINE}”") for name in _ON_RECORDING]
        return [failed(PIPELINE, _describe(error)), *skips]
    detail = f"{recording.num_cycles} learner cycles, {recording.num_updates} updates"
    randomness_names = [randomness.ACTORS, randomness.ENVIRONMENTS]
    return [
        passed(PIPELINE, detail),
        *_run(acting.check_alignment, subject, recording, names=[acting.ALIGNMENT]),
        *_run(acting.check_states, subject, recording, names=[acting.REPLAYED]),
        *_run(acting.check_forgetting, subject, recording, names=[acting.FORGETTING]),
        *_check_updates(subject, recording),
        *_run(randomness.check_randomness, subject, recording, names=randomness_names),
        *_run(efficiency.check_donation, subject, recording, names=[efficiency.DONATION]),
        *_run(efficiency.check_compilation, recording, names=[efficiency.COMPILATION]),
    ]


def _check_updates(subject: Subject, recording: Recording) -> list[CheckResult]:
    equality = [learner_devices.EQUALITY]
    if first_learning_cycle(subject) is None:
        reason = "the agent takes no updates, so there is no gradient"
        return [skipped(name, reason) for name in [*learning.LOSS_CHECKS, *equality]]

    def check_learning() -> list[CheckResult]:
        return learning.check_learning(subject, LossSensitivity(subject, recording))

    return [
        *_run(check_learning, names=learning.LOSS_CHECKS),
        *_run(learner_devices.check_equality, subject, recording, names=equality),
    ]


def _run(
    check: Callable[..., CheckResult | list[CheckResult]], *args: Any, names: Sequence[str]
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
