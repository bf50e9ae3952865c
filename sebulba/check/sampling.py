"""Checks of sampled and greedy actions, and of the log-probabilities that are stored with them."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.policy import is_log_prob, policies_of, with_noise
from sebulba.check.question import Needs, Question
from sebulba.check.randomness import first_row, with_randomness_of
from sebulba.check.result import Answer, as_numpy, failed, passed, passed_unless, skipped
from sebulba.check.subject import env_axes
from sebulba.pytree import leaf_name
from sebulba.types import ActorState, EnvStep, PyTree

_NUM_DRAWS = 512
_MAX_STANDARD_ERRORS = 6.0  # far enough that no check of sound agents fails by chance
_MIN_PROBABILITY = 0.02  # of an action whose frequency is compared
_NUM_KEYS = 16  # on each of many observations
_NUM_NETWORKS = 4
_MIN_DIFFERENCE = 1e-3  # of actions of two environments; less may be rounding


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Draws:
    """`_NUM_DRAWS` independent answers of `act` to one row."""

    action: np.ndarray  # [N, B, ...]
    extras: PyTree  # [N, B, ...]


class _Sampler:
    """Acts on one observation, with equal memory and other random keys.

    The keys are those of new actors, or those of one actor at consecutive steps.
    """

    def __init__(self, evidence: Evidence):
        subject, recording = evidence.subject, evidence.recording
        self._subject, self._recording = subject, recording
        self._axes = env_axes(subject.agent, subject.run_spec)
        self._networks = recording.trajectories[0].networks
        row = first_row(recording)
        # Not a reset, in which an agent may sample a skill, and then acts on that.
        self._row = dataclasses.replace(row, is_first=jnp.zeros_like(row.is_first))

    @functools.cached_property
    def sampled(self) -> _Draws:
        """Sampled actions of new actors."""
        return self.draw(self._new_states, greedy=False)

    @functools.cached_property
    def _new_states(self) -> ActorState:
        """States of new actors, `[N, ...]`."""
        agent, num_envs = self._subject.agent, self._subject.run_spec.num_streams

        def init(key: jax.Array) -> ActorState:
            return agent.init_actor_state(self._networks, num_envs, key, 0)

        keys = jax.random.split(jax.random.key(self._subject.config.seed), _NUM_DRAWS)
        return jax.jit(lambda keys: jax.lax.map(init, keys))(keys)

    @functools.cached_property
    def has_equal_environments(self) -> bool:
        """Whether nothing in actor 0's state tells its environments apart."""
        leaves = jax.tree.leaves(as_numpy(self._subject.start_states[0]))
        pairs = zip(leaves, jax.tree.leaves(self._axes), strict=True)
        return all(np.all(leaf == leaf.take([0], axis)) for leaf, axis in pairs if axis >= 0)

    def greedy(self) -> _Draws:
        """Return greedy actions of new actors."""
        return self.draw(self._new_states, greedy=True)

    def successive_states(self) -> ActorState:
        """Return the states of one actor at consecutive steps, `[N, ...]`."""

        def step(state: ActorState, _: None) -> tuple[ActorState, ActorState]:
            _, _, after = self._subject.agent.act(self._networks, state, self._row, greedy=False)
            return after, state

        unroll = jax.jit(lambda state: jax.lax.scan(step, state, None, length=_NUM_DRAWS)[1])
        return unroll(self._subject.start_states[0])

    def on_other_rows(self) -> Iterator[np.ndarray]:
        """Yield sampled actions `[R, keys, B, ...]` of several networks on rows of environment 0.

        The first networks are the recorded ones. The others have noise, since the best action of
        the first may be so much better than the others that no noise of acting changes it.
        """
        base, agent = self._subject.start_states[0], self._subject.agent
        states = jax.tree.map(lambda leaf: leaf[:_NUM_KEYS], self._new_states)
        env_steps = self._recording.trajectories[0].trajectory.env_steps
        rows = jax.tree.map(
            lambda leaf: jnp.broadcast_to(jnp.asarray(leaf[:, :1]), leaf.shape), env_steps
        )
        rows = dataclasses.replace(rows, is_first=jnp.zeros_like(rows.is_first))

        @jax.jit
        def act(networks: PyTree) -> PyTree:
            def on_row(row: EnvStep) -> PyTree:
                def with_key(state: ActorState) -> PyTree:
                    state = with_randomness_of(state, base, self._axes)
                    return agent.act(networks, state, row, greedy=False)[0]

                return jax.lax.map(with_key, states)

            return jax.lax.map(on_row, rows)

        for attempt in range(_NUM_NETWORKS):
            rng = np.random.default_rng(attempt)
            noise = functools.partial(with_noise, rng=rng, size=0.0 if attempt == 0 else 1.0)
            yield np.asarray(act(jax.tree.map(noise, self._networks)))

    def draw(self, states: ActorState, *, greedy: bool) -> _Draws:
        """Act with the memory of one actor, and the random keys of each of these states."""
        base = self._subject.start_states[0]

        def act(state: ActorState) -> tuple[PyTree, PyTree]:
            state = with_randomness_of(state, base, self._axes)
            return self._subject.agent.act(self._networks, state, self._row, greedy=greedy)[:2]

        action, extras = jax.jit(lambda states: jax.lax.map(act, states))(states)
        space = self._subject.run_spec.environment.action_space
        policies = {
            leaf_name(path, "extras"): node
            for path, node in policies_of(extras, action, space).items()
        }
        log_probs = {name: node.log_prob(action) for name, node in policies.items()}
        modes = {name: node.mode() for name, node in policies.items()}
        return _Draws(
            action=np.asarray(action),
            extras=as_numpy({"extras": extras, "log_probs": log_probs, "modes": modes}),
        )


def _num_different(actions: np.ndarray) -> int:
    return len(np.unique(actions.reshape(len(actions), -1), axis=0))


def step_keys(evidence: Evidence) -> Answer:
    """Compare the actions of one actor at consecutive steps, on one observation."""
    sampler = evidence.shared(_Sampler)
    over_actors = _num_different(sampler.sampled.action)
    if over_actors < 4:
        return _fixed_noise(sampler) or skipped("the agent acts deterministically, or nearly so")
    over_steps = _num_different(sampler.draw(sampler.successive_states(), greedy=False).action)
    failure = None
    if over_steps <= over_actors // 8:
        failure = (
            f"actor 0: expected other actions at each of {_NUM_DRAWS} steps on one observation, as"
            f" with other keys ({over_actors} different batches of actions), got {over_steps}"
            " different batches of actions"
        )
    detail = f"{over_steps} different batches of actions in {_NUM_DRAWS} steps on one observation"
    return passed_unless(failure, detail)


def _fixed_noise(sampler: _Sampler) -> Answer | None:
    """Return a failure if environments in equal states act differently, but the same for any key.

    What tells them apart is then random, and drawn from another key than the actor state's.
    """
    if not sampler.has_equal_environments:
        return None
    for actions in sampler.on_other_rows():
        by_env = np.moveaxis(actions, 2, 0).astype(np.float64)  # [B, rows, keys, ...]
        by_env = by_env.reshape(*by_env.shape[:3], -1)
        if np.ptp(by_env, axis=2).any():
            return None
        is_other = (np.abs(by_env - by_env[:1]) > _MIN_DIFFERENCE).any(axis=(2, 3))
        if is_other.any():
            env, row = np.argwhere(is_other)[0]
            return failed(
                f"actor 0, envs 0 and {env}, row {row}: expected other actions with other keys, or"
                f" equal actions in equal states on one observation, got"
                f" {actions[row, 0, 0].squeeze()} and {actions[row, 0, env].squeeze()} with each of"
                f" {actions.shape[1]} keys",
                "act draws from a key that is not the actor state's",
            )
    return None


def greedy(evidence: Evidence) -> Answer:
    """Compare greedy actions with each other and with modes, for many random keys."""
    subject = evidence.subject
    greedy = evidence.shared(_Sampler).greedy()
    if not jax.tree.leaves(evidence.recording.networks):
        return skipped("the agent has no networks, so no action is better than another")
    epsilon = float(subject.setting("evaluation_epsilon", "eval_epsilon") or 0.0)
    num_draws, num_envs = greedy.action.shape[:2]
    departures = np.zeros((num_draws, num_envs), bool)
    for env in range(num_envs):
        actions = greedy.action[:, env].reshape(num_draws, -1)
        values, counts = np.unique(actions, axis=0, return_counts=True)
        departures[:, env] = (actions != values[np.argmax(counts)]).any(axis=-1)
    count = departures.size
    allowed = epsilon + _MAX_STANDARD_ERRORS * np.sqrt(epsilon * (1.0 - epsilon) / count)
    if departures.mean() > allowed:
        draw, env = np.argwhere(departures)[0]
        return failed(
            f"action (row 0, env {env}, key {draw}): expected one greedy action for one"
            f" observation, except with probability {epsilon:g} (evaluation_epsilon), got another"
            f" in {departures.mean():.1%} of {count:,} draws"
        )
    for name, mode in greedy.extras["modes"].items():
        if mode.shape != greedy.action.shape or epsilon:
            continue
        differs = ~np.isclose(mode, greedy.action, rtol=1e-4, atol=1e-4)
        if differs.any():
            index = tuple(np.argwhere(differs)[0])
            return failed(
                f"action (row 0, env {index[1]}): expected the mode {mode[index]:.6g} of {name},"
                f" got {greedy.action[index]:.6g}",
                "greedy actions are not the policy's mode",
            )
    return passed(f"equal in {count:,} draws, up to evaluation_epsilon {epsilon:g}")


def log_probs(evidence: Evidence) -> Answer:
    """Compare stored log-probabilities with the frequencies or the spread of actions."""
    sampled = evidence.shared(_Sampler).sampled
    log_probs = dict(sampled.extras["log_probs"])
    for path, leaf in jax.tree_util.tree_leaves_with_path(sampled.extras["extras"]):
        if is_log_prob(path, leaf, sampled.action.shape[:2]):
            log_probs[leaf_name(path, "extras")] = leaf
    log_probs = {name: each for name, each in log_probs.items() if each.ndim == 2}
    if not log_probs:
        return skipped("the extras have no distribution, and no log_prob of shape [B]")
    compare = (
        _wrong_frequency if np.issubdtype(sampled.action.dtype, np.integer) else _wrong_density
    )
    failures = (compare(name, each, sampled.action) for name, each in log_probs.items())
    failure = next((each for each in failures if each), None)
    return passed_unless(
        failure, f"{', '.join(log_probs)}: agree with {_NUM_DRAWS} actions for one observation"
    )


def _wrong_frequency(name: str, log_probs: np.ndarray, actions: np.ndarray) -> str | None:
    """Compare the probability of each action with its frequency."""
    num_draws, num_envs = log_probs.shape
    for env in range(num_envs):
        of_env = actions[:, env].reshape(num_draws, -1)
        values, index = np.unique(of_env, axis=0, return_inverse=True)
        inverse = float(np.exp(-log_probs[0, env]))
        # Equal probabilities are those of a uniform policy over some number of actions.
        is_uniform = abs(inverse - round(inverse)) < 1e-2
        if len(values) > 1 and np.ptp(log_probs[:, env]) == 0.0 and not is_uniform:
            return (
                f"{name} (row 0, env {env}): expected other log-probabilities of {len(values)}"
                f" different actions, got {log_probs[0, env]:.6g} for all of them"
            )
        for number, value in enumerate(values):
            chosen = index.reshape(-1) == number
            frequency, expected = chosen.mean(), float(np.exp(log_probs[chosen, env]).mean())
            if max(frequency, expected) < _MIN_PROBABILITY:
                continue
            bound = max(frequency, min(expected, 1.0))
            error = np.sqrt(max(bound * (1.0 - bound), 1e-3) / num_draws)
            if abs(frequency - expected) > _MAX_STANDARD_ERRORS * error:
                return (
                    f"{name} (row 0, env {env}): expected the probability of action"
                    f" {value.squeeze()}, which was {frequency:.3f} of {num_draws} draws, got"
                    f" {expected:.3f}"
                )
    return None


def _wrong_density(name: str, log_probs: np.ndarray, actions: np.ndarray) -> str | None:
    """Compare a log density's own entropy with that of a Gaussian of the actions' covariance.

    A Gaussian has the greatest entropy of all densities with a covariance, so the mean of
    −log p of the actions must not exceed it; and it must vary as the actions do.
    """
    num_draws, num_envs = log_probs.shape
    for env in range(num_envs):
        of_env = actions[:, env].reshape(num_draws, -1).astype(np.float64)
        if not of_env.std() > 0.0:
            continue
        if np.ptp(log_probs[:, env]) == 0.0:
            return (
                f"{name} (row 0, env {env}): expected another log density for each of"
                f" {num_draws} different actions, got {log_probs[0, env]:.6g} for all of them"
            )
        covariance = np.atleast_2d(np.cov(of_env.T)) + 1e-9 * np.eye(of_env.shape[1])
        size = of_env.shape[1]
        most = 0.5 * (size * np.log(2.0 * np.pi * np.e) + np.linalg.slogdet(covariance)[1])
        got = -float(log_probs[:, env].mean())
        error = float(log_probs[:, env].std()) / np.sqrt(num_draws) + size / np.sqrt(num_draws)
        if got > most + _MAX_STANDARD_ERRORS * error:
            return (
                f"{name} (row 0, env {env}): expected a mean log density of at least {-most:.3f}"
                f" for the {num_draws} actions drawn, got {-got:.3f}"
            )
    return None


STEP_KEYS = Question(
    name="step-keys",
    ask=step_keys,
    property="each step draws its own random numbers",
    needs=Needs.RECORDING,
    perturbs=(f"acts {_NUM_DRAWS} times in a row, and with {_NUM_DRAWS} keys, on one observation"),
    proof="4 different batches of actions with other keys, or one in which environments differ",
    expects="about as many different batches in a row; environments in equal states to act alike",
    bound="an eighth of them: a key that stays gives one",
    likely_cause="act returns the actor state with the same key",
)

GREEDY = Question(
    name="greedy",
    ask=greedy,
    property="greedy actions do not depend on the random key",
    needs=Needs.RECORDING,
    perturbs=f"the random key of greedy acting, {_NUM_DRAWS} times",
    proof="the agent has networks",
    expects="one action, which is the mode of a stored distribution",
    bound=(
        f"`evaluation_epsilon`, to {_MAX_STANDARD_ERRORS:g} standard errors: 2e-9 by chance. "
        "Modes to 1e-4, since they are computed twice"
    ),
    likely_cause="act samples although `greedy` is set",
)

LOG_PROBS = Question(
    name="log-probs",
    ask=log_probs,
    property="stored log-probabilities are those of the sampled actions",
    needs=Needs.RECORDING,
    perturbs=f"draws {_NUM_DRAWS} actions on one observation",
    proof="the extras have log-probabilities [B], or a distribution",
    expects=(
        "frequencies as stored; a density that varies with the action, and has no more entropy "
        "than a Gaussian"
    ),
    bound=(
        f"{_MAX_STANDARD_ERRORS:g} standard errors: 2e-9 by chance, for each action of a "
        f"probability above {_MIN_PROBABILITY:g}"
    ),
    likely_cause="the log-probability is not that of the action taken, or of another policy",
)
