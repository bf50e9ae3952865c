"""Run mutants of the shipped agents in this process, and ask the check's questions of each.

A mutant's functions get the mutated code while it runs; its classes stay those of the original. So
every compiled function that a mutation leaves alone is shared, and a mutant that acts like the
original can be asked on the original's recording.
"""

import ast
import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib
import types
from collections.abc import Collection, Iterator

import jax
import jax.extend
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from sebulba.check import suite
from sebulba.check.capture import from_data
from sebulba.check.evidence import Evidence
from sebulba.check.recording import Recording
from sebulba.check.result import as_numpy
from sebulba.check.subject import Subject, assemble_subject
from sebulba.config import Config
from sebulba.types import Clock, PyTree

ACTING = ("init_networks", "init_actor_state", "actor_networks", "act", "greedy act")
_LAST = {"devices", "replicas"}  # they take the longest
_LEARNING = tuple(
    each.name
    for each in suite.QUESTIONS
    if each.needs >= suite.Needs.UPDATES and each.name not in _LAST
)
SAME_RUN = "a run gives the same bits"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a mutant."""

    kind: str  # found, equivalent, missed, or broken: it raises at once, and is no mutant
    check: str = ""  # the questions that found it
    detail: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Original:
    """A sound agent, its recording, and what it computes."""

    config: Config
    subject: Subject
    recording: Recording
    computations: dict[str, str]
    fingerprint: str


@contextlib.contextmanager
def mutated(module: str, tree: ast.Module) -> Iterator[None]:
    """Give the functions of a module the code of a mutated tree."""
    path = importlib.import_module(module).__file__
    assert path is not None
    codes = dict(_function_codes(compile(tree, path, "exec")))
    swapped = []
    for each in _objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename == path:
            name = each.__code__.co_qualname
            # Code of functions inside functions is a part of their code.
            if name in codes and codes[name].co_freevars == each.__code__.co_freevars:
                swapped.append((each, each.__code__))
    jax.clear_caches()  # They may have been traced already.
    try:
        for function, _ in swapped:
            function.__code__ = codes[function.__code__.co_qualname]
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code
        jax.clear_caches()  # What was traced in between is the mutant's.


def _objects() -> list[object]:
    """Return all objects that the garbage collector knows, those too that `gc.freeze` hides.

    The tests freeze what is imported when they are collected, which depends on the tests chosen.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if is_frozen:
        gc.freeze()
    return found


def _function_codes(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    """Yield names and code of functions in a module or class body."""
    for each in code.co_consts:
        if not isinstance(each, types.CodeType):
            continue
        is_class = "__qualname__" in each.co_names and "__module__" in each.co_names
        if is_class:
            yield from _function_codes(each)
        else:
            yield each.co_qualname, each


def original(config: Config) -> Original:
    """Check a sound agent, and keep what its mutants are compared with.

    Raises:
        AssertionError: a check of the sound agent fails.
    """
    subject = assemble_subject(config)
    evidence = Evidence(subject)
    recording = evidence.recording
    fingerprint = _fingerprint(subject)
    names = [each.name for each in suite.QUESTIONS if each.name not in _LAST]
    outcome = _of_results(_until_failure(suite.results_of(evidence, names)))
    assert outcome.kind == "missed", outcome
    return Original(
        config=config,
        subject=subject,
        recording=recording,
        computations=computations(subject, recording),
        fingerprint=fingerprint,
    )


def examine(sound: Original, *, every: bool = False) -> Outcome:
    """Ask the check's questions of the mutant of `mutated`.

    Args:
        sound: the original.
        every: ask every question; else until one is answered with a ✗.
    """
    try:
        agent, _ = sound.subject.agent_on(1)
        subject = dataclasses.replace(sound.subject, agent=agent)
        found = computations(subject, sound.recording)
    except Exception:
        return _of_results(_full_check(sound, every=every)[0])
    if found == sound.computations:
        return Outcome(kind="equivalent", detail="the agent computes the same")
    if all(found[name] == sound.computations[name] for name in ACTING):
        asked = suite.results_of(Evidence(subject, sound.recording), _LEARNING)
        outcome = _of_results(list(asked) if every else _until_failure(asked))
        if outcome.kind == "found":
            return outcome
        # Without the comparison of learner devices, which takes the longest.
        results, fingerprint = _full_check(sound, only=("pipeline",))
    else:
        results, fingerprint = _full_check(sound, every=every)
    outcome = _of_results(results)
    if outcome.kind == "missed" and fingerprint == sound.fingerprint:
        return Outcome(kind="equivalent", detail=SAME_RUN)
    return outcome


def _of_results(results: list[suite.CheckResult]) -> Outcome:
    for result in results:
        if result.detail.startswith(("raised NameError", "raised AttributeError")):
            return Outcome(kind="broken", detail=result.detail)
    found = [result for result in results if result.status == "fail"]
    if not found:
        return Outcome(kind="missed")
    names = "`, `".join(result.name for result in found)
    return Outcome(kind="found", check=names, detail=found[0].detail)


def _until_failure(results: Iterator[suite.CheckResult]) -> list[suite.CheckResult]:
    asked = []
    for result in results:
        asked.append(result)
        if result.status == "fail":
            break
    return asked


def _full_check(
    sound: Original, only: Collection[str] = (), *, every: bool = False
) -> tuple[list[suite.CheckResult], str]:
    """Check the mutant as the command does."""
    try:
        subject = assemble_subject(sound.config)
    except Exception as error:
        return [suite._result(suite.QUESTIONS[0], suite._raised(error))], ""
    try:
        asked = suite.results_of(Evidence(subject), only)
        results = list(asked) if every else _until_failure(asked)
        return results, _fingerprint(subject)
    finally:
        subject.close()


def _fingerprint(subject: Subject) -> str:
    """Hash the learner's state after the recording: actions, extras, losses, gradients."""
    state = subject.ring.learner.state
    return _hash(as_numpy((state.networks, state.opt_state, state.experience)))


def _hash(tree: PyTree) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def computations(subject: Subject, recording: Recording) -> dict[str, str]:
    """Return a hash of what each method of the agent computes, constants included."""
    agent, spec = subject.agent, subject.run_spec
    item = recording.trajectories[-1]
    key, number = jax.random.key(0), np.int32(0)
    networks = jax.eval_shape(agent.init_networks, key)
    like = subject.start_states[0]
    row = jax.tree.map(lambda leaf: leaf[0], item.trajectory.env_steps)
    states = [from_data(state, like) for state in (item.initial_state, item.final_state)]
    experience = jax.eval_shape(lambda n: agent.init_experience(n, spec.num_envs), networks)
    opt_state = jax.eval_shape(agent.init_opt_state, networks)
    actor = jax.eval_shape(agent.actor_networks, networks)
    act = functools.partial(agent.act, greedy=False)
    greedy = functools.partial(agent.act, greedy=True)
    clock = Clock.at()
    learned = (networks, experience, key, clock)
    functions = {
        "init_networks": (agent.init_networks, (key,)),
        "init_actor_state": (
            lambda n, key: agent.init_actor_state(n, spec.num_envs, key, 1),
            (actor, key),
        ),
        "act": (act, (actor, like, row)),
        "greedy act": (greedy, (actor, like, row)),
        "actor_networks": (agent.actor_networks, (networks,)),
        "init_experience": (lambda n: agent.init_experience(n, spec.num_envs), (networks,)),
        "init_opt_state": (agent.init_opt_state, (networks,)),
        "update_experience": (
            agent.update_experience,
            (networks, experience, *states, item.trajectory, number),
        ),
        "loss": (jax.grad(lambda *args: agent.loss(*args)[0], allow_int=True), learned),
        "experience after the loss": (lambda *args: agent.loss(*args)[1][0], learned),
        "optimize": (agent.optimize, (networks, opt_state, networks, experience, clock)),
    }
    hashes = {name: _of_jaxpr(jax.make_jaxpr(f)(*args)) for name, (f, args) in functions.items()}
    counts = [agent.num_updates_per_cycle(cycle) for cycle in range(100)]
    return hashes | {"num_updates_per_cycle": str(counts)}


def _of_jaxpr(closed: jax.extend.core.ClosedJaxpr) -> str:
    # Without what only metrics need.
    used, inputs = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    text = f"{used} {inputs}"
    return hashlib.sha256(text.encode()).hexdigest() + _hash(as_numpy(closed.consts))
