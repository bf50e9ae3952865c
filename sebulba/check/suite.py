"""All questions, in the order in which they are asked and printed."""

import dataclasses
import enum
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
    efficiency,
    episodes,
    learner_devices,
    learning,
    memory,
    next_values,
    own_environment,
    priorities,
    randomness,
    ratios,
    samples,
    sampling,
    scale,
    updates,
    values,
)
from sebulba.check.evidence import Evidence
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

OnProgress = Callable[[str], None]
"""Called with the property that a question is about, before it is asked."""


class Needs(enum.IntEnum):
    """What has to work before a question can be asked; each includes those above it."""

    SUBJECT = 0  # the agent and its environment
    RECORDING = 1  # recorded trajectories
    UPDATES = 2  # and an agent that takes updates
    GRADIENT = 3  # and recorded trajectories that give a gradient
    TRAINING = 4  # and hundreds of updates, for which the agent must not be too large


@dataclasses.dataclass(frozen=True)
class Question:
    """A property of agents, and the function that asks whether this agent has it."""

    name: str  # for `--only`
    ask: Callable[[Evidence], Answer]
    needs: Needs
    property: str
    likely_cause: str  # of a failure that does not name another one
    needs_jit: bool = False  # it is about compiled functions


@dataclasses.dataclass(frozen=True)
class EnvironmentQuestion:
    """A property of environments, and the function that asks the config's own one for it."""

    name: str  # for `--only`
    ask: Callable[[own_environment.OwnEnvironment], Answer]
    property: str
    likely_cause: str


def _fits(evidence: Evidence) -> Answer:
    del evidence  # The subject could be assembled.
    return passed("act keeps its shapes, and its actions fit the action space")


def _runs(evidence: Evidence) -> Answer:
    recording = evidence.recording
    return passed(f"{recording.num_cycles} learner cycles, {recording.num_updates} updates")


# fmt: off
ENVIRONMENT_QUESTIONS = (
    EnvironmentQuestion("stream", own_environment.stream,
        "the environment keeps the stream's contract",
        "a flag, a shape or a number of the environment"),
    EnvironmentQuestion("lengths", own_environment.lengths,
        "episodes have more than one step",
        ""),
    EnvironmentQuestion("seeds", own_environment.seeds,
        "the same seed gives the same stream",
        "random numbers of a generator that the seed does not reach, a clock, or state that"
        " environments share"),
    EnvironmentQuestion("buffers", own_environment.buffers,
        "returned rows are never written to again",
        "the environment returns views of one buffer, not copies"),
)
# The quick ones first.
QUESTIONS = (
    Question("protocol", _fits, Needs.SUBJECT,
        "the agent fits the environment",
        ""),
    Question("splitting", learner_devices.splitting, Needs.SUBJECT,
        "shard_actor_state splits by environment",
        "shard_actor_state places a leaf wrongly, or changes the order of environments"),
    Question("exploration", randomness.exploration, Needs.SUBJECT,
        "each environment has its own exploration",
        "init_actor_state does not use actor_id · num_envs + environment"),
    Question("pipeline", _runs, Needs.SUBJECT,
        "actors and learner run",
        ""),
    Question("rows", acting.rows, Needs.RECORDING,
        "update_experience gets the environment's rows",
        "a buffer was overwritten before the learner read it"),
    Question("states", acting.states, Needs.RECORDING,
        "acting again gives the same actor states",
        "act depends on more than its arguments, or shard_actor_state reorders leaves"),
    Question("resets", acting.resets, Needs.RECORDING,
        "an episode begins without memory of the last",
        "act does not reset its memory where is_first, before using the observation"),
    Question("rewards", learning.rewards, Needs.GRADIENT,
        "the loss credits a reward to the action before it",
        "rewards are one row off; transition t has the reward of row t + 1"),
    Question("termination", learning.termination, Needs.GRADIENT,
        "the loss does not bootstrap at a termination",
        "the discount is not γ·(1 − terminated)"),
    Question("masks", learning.masks, Needs.GRADIENT,
        "the loss gives autoreset transitions weight 0",
        "a term of the loss is not masked with Trajectory.valid"),
    Question("truncation", learning.truncation, Needs.GRADIENT,
        "the loss bootstraps at a truncation",
        "it bootstraps from the reset row after it, or is taken for a termination"),
    Question("memory", memory.memory, Needs.GRADIENT,
        "the loss begins episodes without memory",
        "the recurrent state is not reset where is_first, or only after it was used"),
    Question("episodes", episodes.episodes, Needs.GRADIENT,
        "the loss learns from each episode alone",
        "a model's unroll, a memory or attention goes on into the next episode"),
    Question("correction", behaviour.correction, Needs.GRADIENT,
        "the loss uses the stored behaviour policy",
        "the importance weights compare the current policy with itself; a loss without them "
        "needs a policy lag of 0"),
    Question("ratios", ratios.ratios, Needs.GRADIENT,
        "the likelier an action was, the less it counts",
        "behaviour and proximal policy are exchanged, or a weight counts twice or is clipped on "
        "the wrong side"),
    Question("actor-keys", randomness.actor_keys, Needs.RECORDING,
        "each actor draws its own random numbers",
        "init_actor_state does not store its key in the actor state"),
    Question("env-keys", randomness.env_keys, Needs.RECORDING,
        "each environment draws its own random numbers",
        "act draws one random number for all environments"),
    Question("step-keys", sampling.step_keys, Needs.RECORDING,
        "each step draws its own random numbers",
        "act returns the actor state with the same key"),
    Question("greedy", sampling.greedy, Needs.RECORDING,
        "greedy actions do not depend on the random key",
        "act samples although `greedy` is set"),
    Question("log-probs", sampling.log_probs, Needs.RECORDING,
        "stored log-probabilities are those of the sampled actions",
        "the log-probability is not that of the action taken, or of another policy"),
    Question("legal", acting.legal, Needs.RECORDING,
        "only legal actions are taken, and learned from",
        "act does not use env_step.action_mask"),
    Question("donation", efficiency.donation, Needs.RECORDING,
        "actor and learner states are donated",
        "no output has the shape and dtype of this leaf",
        needs_jit=True),
    Question("compilation", efficiency.compilation, Needs.RECORDING,
        "every function is compiled once",
        "a shape, dtype or static argument changes between cycles",
        needs_jit=True),
    Question("updates", updates.updates, Needs.UPDATES,
        "updates descend, and reach every leaf in use",
        "optimize leaves it out"),
    Question("preference", direction.preference, Needs.TRAINING,
        "rewarded actions become more likely",
        "a sign in the policy's loss, in the TD error or in the target"),
    Question("entropy", direction.entropy, Needs.TRAINING,
        "the entropy bonus raises the entropy",
        "the entropy has the wrong sign in the loss"),
    Question("values", values.values, Needs.TRAINING,
        "values approach rewards, and count the next value once",
        "a sign in the value loss, or in its targets"),
    Question("baseline", baseline.baseline, Needs.TRAINING,
        "the policy's gradient subtracts a value, and adds the next",
        "advantages are computed otherwise than what values learn"),
    Question("next-values", next_values.next_values, Needs.TRAINING,
        "the next value is the policy's, and the lesser of several",
        "the value of the next observation is that of another action"),
    Question("symmetry", values.symmetry, Needs.TRAINING,
        "rewards and penalties weigh the same",
        "a bound on one side only, or a sign in the ratio or in the value loss (a loss may also "
        "be asymmetric on purpose)"),
    Question("advantages", values.advantages, Needs.TRAINING,
        "standardised advantages ignore a constant reward",
        "the mean is not subtracted from the advantages"),
    Question("priorities", priorities.priorities, Needs.GRADIENT,
        "a TD error sets the priority of its own sequence",
        "priorities are not in the order of the sampled ids"),
    Question("importance", priorities.importance, Needs.TRAINING,
        "likely draws count less",
        "the loss is not multiplied by the importance weights"),
    Question("epochs", samples.epochs, Needs.GRADIENT,
        "each epoch learns once from every transition",
        "minibatches are drawn with replacement, or leave samples out"),
    Question("padding", scale.padding, Needs.GRADIENT,
        "environments without valid rows change nothing",
        "a mean or a normalisation counts rows that are not valid"),
    Question("discount", scale.discount, Needs.UPDATES,
        "later rewards have the declared discount",
        "the discount is applied twice, or not at all"),
    Question("devices", learner_devices.devices, Needs.UPDATES,
        "one and two learner devices learn the same",
        "a mean or sum over the batch does not use sebulba.toolkit.reductions",
        needs_jit=True),
    Question("replicas", learner_devices.replicas, Needs.UPDATES,
        "every learner device has the same networks",
        "optimize depends on one device's experience, or on the device",
        needs_jit=True),
)
# fmt: on
BY_NAME = {question.name: question for question in QUESTIONS}
NAMES = {each.name: each.property for each in (*ENVIRONMENT_QUESTIONS, *QUESTIONS)}
"""The properties of all questions, in the order in which they are asked."""


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
        if name not in NAMES:
            raise ConfigError(
                f"--only: expected names of `{program('check')} --list`, got"
                f" {name!r}{did_you_mean(name, NAMES)}"
            )
    results = [*environment_results(config, only, on_progress)]
    on_progress(QUESTIONS[0].property)
    try:
        subject = assemble_subject(with_task_defaults(config).config)
    except ConfigError:
        raise
    except Exception as error:
        results.append(_result(QUESTIONS[0], _raised(error)))
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
        if question.ask is not own_environment.stream and (play.fault or play.broken):
            answer = skipped(f"see “{ENVIRONMENT_QUESTIONS[0].property}”")
        else:
            answer = question.ask(own)
        yield dataclasses.replace(_result(question, answer), of="environment")


def results_of(
    evidence: Evidence,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda text: None,
) -> Iterator[CheckResult]:
    """Yield the results of the questions with these names (empty: all), each once it is known."""
    wanted = {"protocol", *((name for name in only if name in BY_NAME) if only else BY_NAME)}
    if any(BY_NAME[name].needs >= Needs.RECORDING for name in wanted):
        wanted.add("pipeline")
    broken: dict[Needs, str] = {}  # the question that found out that these do not work
    for question in QUESTIONS:
        if question.name not in wanted:
            continue
        if question is not QUESTIONS[0]:
            on_progress(question.property)
        answer = _reason_to_skip(question, evidence, broken)
        if answer is None:
            try:
                answer = _ask(question, evidence)
            except ConfigError:
                raise
            except Exception as error:
                answer = _raised(error)
                if question.name == "pipeline":
                    broken[Needs.RECORDING] = "pipeline"
                elif question.needs >= Needs.UPDATES and "loss" not in vars(evidence):
                    broken[Needs.UPDATES] = question.name
        yield _result(question, answer)


def _reason_to_skip(
    question: Question, evidence: Evidence, broken: dict[Needs, str]
) -> Answer | None:
    cause = next((name for needs, name in broken.items() if question.needs >= needs), None)
    if cause is not None:
        return skipped(f"see “{BY_NAME[cause].property}”")
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


def _result(question: Question | EnvironmentQuestion, answer: Answer) -> CheckResult:
    own = answer.likely_cause
    cause = question.likely_cause if own is None else own
    detail = answer.detail
    if answer.status == "fail" and cause:
        detail += f"; likely cause: {cause}"
    return CheckResult(
        name=question.name, property=question.property, status=answer.status, detail=detail
    )


def _raised(error: Exception) -> Answer:
    if isinstance(error, AgentError):
        return failed(str(error), likely_cause="")
    what = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame of the agent or the framework is more useful than JAX's own at the end.
    ours = [each for each in frames if "site-packages" not in each.filename] or frames
    where = f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}, in {ours[-1].name}"
    return failed(f"raised {type(error).__name__} ({where}): {what[0]}", likely_cause="")
