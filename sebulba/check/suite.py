"""All questions, in the order in which they are asked and printed."""

import dataclasses
import pathlib
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import Literal

from sebulba.agent_check import AgentError
from sebulba.check import (
    acting,
    baseline,
    behaviour,
    direction,
    discount,
    efficiency,
    episodes,
    learner_devices,
    learning,
    memory,
    next_values,
    own_environment,
    padding,
    players,
    policy_observation,
    priorities,
    randomness,
    ratios,
    samples,
    sampling,
    splitting,
    unrolls,
    updates,
    values,
)
from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, Status, failed, passed, skipped
from sebulba.check.subject import assemble_subject
from sebulba.check.training import too_large
from sebulba.config import Config
from sebulba.devices.mapping import is_jit_disabled
from sebulba.envs.task_defaults import with_task_defaults
from sebulba.errors import ConfigError, did_you_mean
from sebulba.process import program

AskedOf = Literal["environment", "probe"]
"""What a question is asked of: the config's own environment, or the agent on a probe."""

REFUSES_SETTINGS = "the agent refuses the settings of this question"
"""How the detail of a question begins that was skipped for this reason."""

OnProgress = Callable[[str], None]
"""Called with the property that a question is about, before it is asked."""


def _fits(evidence: Evidence) -> Answer:
    # The subject could be assembled.
    fits = "act keeps its shapes, and its actions fit the action space"
    smaller = ", ".join(evidence.subject.smaller_sizes)
    return passed(f"{fits}; for what follows, {smaller}" if smaller else fits)


def _runs(evidence: Evidence) -> Answer:
    recording = evidence.recording
    return passed(f"{recording.num_cycles} learner cycles, {recording.num_updates} updates")


PROTOCOL = Question(
    name="protocol",
    ask=_fits,
    property="the agent fits the environment",
    perturbs="traces every method with shapes, and acts once",
    proof="the ring was assembled",
    expects="shapes that stay, actions of the action space, and methods as the protocol says",
    bound="exact: shapes and dtypes",
    likely_cause="",
)
PIPELINE = Question(
    name="pipeline",
    ask=_runs,
    property="actors and learner run",
    perturbs="runs some learner cycles in one thread, and records them",
    proof="every actor acted twice, and the learner took updates, if the agent takes any",
    expects="no exception",
    bound="exact",
    likely_cause="",
)
ENVIRONMENT_QUESTIONS = (
    own_environment.STREAM,
    own_environment.LENGTHS,
    own_environment.SEEDS,
    own_environment.BUFFERS,
)
"""Asked of the config's own environment, before all others."""
# The quick ones first.
QUESTIONS = (
    PROTOCOL,
    splitting.SPLITTING,
    randomness.EXPLORATION,
    unrolls.UNROLLS,
    PIPELINE,
    acting.ROWS,
    acting.STATES,
    acting.RESETS,
    policy_observation.POLICY_OBSERVATION,
    learning.REWARDS,
    learning.TERMINATION,
    learning.MASKS,
    learning.TRUNCATION,
    memory.MEMORY,
    episodes.EPISODES,
    players.PLAYERS,
    behaviour.CORRECTION,
    ratios.RATIOS,
    randomness.ACTOR_KEYS,
    randomness.ENV_KEYS,
    sampling.STEP_KEYS,
    sampling.GREEDY,
    sampling.LOG_PROBS,
    acting.LEGAL,
    efficiency.DONATION,
    efficiency.COMPILATION,
    updates.UPDATES,
    direction.PREFERENCE,
    direction.ENTROPY,
    values.VALUES,
    baseline.BASELINE,
    next_values.NEXT_VALUES,
    values.SYMMETRY,
    values.ADVANTAGES,
    priorities.PRIORITIES,
    priorities.IMPORTANCE,
    samples.EPOCHS,
    padding.PADDING,
    discount.DISCOUNT,
    learner_devices.DEVICES,
    learner_devices.REPLICAS,
)
"""Asked of the agent, on a probe in place of the environment."""
EVERY = {each.name: each for each in (*ENVIRONMENT_QUESTIONS, *QUESTIONS)}
"""All questions by name, in the order in which they are asked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of the table that `sebulba.check` prints."""

    name: str  # of the question
    property: str  # what was asked
    of: AskedOf = "probe"
    status: Status
    detail: str  # pass: what was compared; fail: place, expected, got, cause; else the reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of all questions."""

    results: tuple[CheckResult, ...]
    memory_plan: str | None  # None: the ring could not be assembled

    @property
    def has_failures(self) -> bool:
        """Whether any answer is a ✗."""
        return any(result.status == "fail" for result in self.results)


def check(
    config: Config,
    *,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda text: None,
) -> Report:
    """Ask the questions about the agent and the environment of a config.

    Args:
        config: the run's settings.
        only: names of the questions to ask; empty: all. `protocol` and, if they need it,
            `pipeline` are asked in any case.
        on_progress: called with what a question is about, before it is asked.

    Raises:
        ConfigError: devices, environment or agent cannot be built from the config, or there is no
            question of a name.
    """
    for name in only:
        if name not in EVERY:
            raise ConfigError(
                f"--only: expected names of `{program('check')} --list`, got"
                f" {name!r}{did_you_mean(name, EVERY)}"
            )
    results = [*environment_results(config, only, on_progress)]
    on_progress(PROTOCOL.property)
    try:
        subject = assemble_subject(with_task_defaults(config).config)
    except ConfigError:
        raise
    except Exception as error:
        results.append(_result(PROTOCOL, _raised(error)))
        return Report(results=tuple(results), memory_plan=None)
    try:
        results += results_of(Evidence(subject), only, on_progress)
        return Report(results=tuple(results), memory_plan=subject.memory_plan.describe())
    finally:
        subject.close()


def environment_results(
    config: Config,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda text: None,
) -> Iterator[CheckResult]:
    """Yield the results of the questions about the config's own environment.

    If it raises, or breaks the contract, the questions that need a stream are skipped.
    """
    own = own_environment.OwnEnvironment(config)
    for question in ENVIRONMENT_QUESTIONS:
        if only and question.name not in only:
            continue
        on_progress(question.property)
        play = own.play
        if question is not own_environment.STREAM and (play.fault or play.broken):
            answer = skipped(f"see “{own_environment.STREAM.property}”")
        else:
            answer = question.ask(own)
        yield dataclasses.replace(_result(question, answer), of="environment")


def results_of(
    evidence: Evidence,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda text: None,
) -> Iterator[CheckResult]:
    """Yield the results of the questions with these names (empty: all), each once it is known."""
    wanted = {PROTOCOL, *(each for each in QUESTIONS if not only or each.name in only)}
    if any(question.needs >= Needs.RECORDING for question in wanted):
        wanted.add(PIPELINE)
    broken: dict[Needs, Question] = {}  # the question that found out that these do not work
    for question in QUESTIONS:
        if question not in wanted:
            continue
        if question is not PROTOCOL:
            on_progress(question.property)
        answer = _reason_to_skip(question, evidence, broken)
        if answer is None:
            try:
                answer = _ask(question, evidence)
            except Exception as error:
                if isinstance(error, ConfigError) and question is PIPELINE:
                    raise  # The pipeline runs with the user's settings, and not with the check's.
                answer = _raised(error)
                if question is PIPELINE:
                    broken[Needs.RECORDING] = question
                elif question.needs >= Needs.UPDATES and "loss" not in vars(evidence):
                    broken[Needs.UPDATES] = question
        yield _result(question, answer)


def _reason_to_skip(
    question: Question, evidence: Evidence, broken: dict[Needs, Question]
) -> Answer | None:
    cause = next((each for needs, each in broken.items() if question.needs >= needs), None)
    if cause is not None:
        return skipped(f"see “{cause.property}”")
    if question.needs >= Needs.UPDATES and not evidence.has_updates:
        return skipped("the agent takes no updates, so there is no gradient")
    if (question.needs_jit or question.needs >= Needs.TRAINING) and is_jit_disabled():
        return skipped("JAX_DISABLE_JIT is set")
    return None


def _ask(question: Question, evidence: Evidence) -> Answer:
    if question.needs >= Needs.GRADIENT and not evidence.loss.has_gradient:
        return skipped("the recorded trajectories gave no gradient")
    if question.needs >= Needs.TRAINING and (reason := too_large(evidence)) is not None:
        return skipped(reason)
    return question.ask(evidence)


def _result(question: Question, answer: Answer) -> CheckResult:
    own = answer.likely_cause
    cause = question.likely_cause if own is None else own
    detail = answer.detail
    if answer.status == "fail" and cause:
        detail += f"; likely cause: {cause}"
    return CheckResult(
        name=question.name, property=question.property, status=answer.status, detail=detail
    )


def _raised(error: Exception) -> Answer:
    if isinstance(error, ConfigError):
        return skipped(f"{REFUSES_SETTINGS}: {error}")
    if isinstance(error, AgentError):
        return failed(str(error), likely_cause="")
    what = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame of the agent or the framework is more useful than JAX's own at the end.
    ours = [each for each in frames if "site-packages" not in each.filename] or frames
    where = f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}, in {ours[-1].name}"
    return failed(f"raised {type(error).__name__} ({where}): {what[0]}", likely_cause="")
