"""Evaluate fixed networks on a fixed number of episodes, one slice of env steps at a time.

Environment `b` contributes exactly its first `quota[b]` episodes. Counting the first N episodes to
end over all environments instead would be biased towards short ones. Players that act together have
one episode, see `sebulba.ring.episodes`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import cast

import jax
import numpy as np

from sebulba.agent import Agent
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import DescribedEnvironment, Environment, Interruptible
from sebulba.envs.closing import CloseProblem, close_environments, closed_on_error
from sebulba.evaluation.sampling import ActingAgent, init_actor_state
from sebulba.evaluation.statistics import EpisodeRecord
from sebulba.ring.act_cycle import call_environment, init_carry
from sebulba.ring.clocks import WallClock
from sebulba.ring.episodes import EpisodeTracker, names_of_players
from sebulba.ring.records import ActCarry, Tally
from sebulba.ring.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.toolkit.prng import environment_seed, stream
from sebulba.types import Networks

_SLICE_LENGTH = 16  # env steps per environment and call of `advance`; callers check time between
_STREAM = "evaluation"
_WHOSE = "the evaluation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Which episodes are played, and how."""

    env: EnvConfig
    episodes: int
    num_envs: int  # upper limit; `episodes` is another
    max_episode_steps: int  # budget per episode, pooled per environment; guarantees termination
    greedy: bool
    seed: int

    @property
    def quota(self) -> np.ndarray:
        """`[B]` int, the number of episodes of each environment; they differ by at most one."""
        num_envs = min(self.num_envs, self.episodes)
        share, rest = divmod(self.episodes, num_envs)
        return np.array([share + (b < rest) for b in range(num_envs)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayedEpisodes:
    """The result of an evaluation: each environment's episodes, in order."""

    episodes: tuple[tuple[EpisodeRecord, ...], ...]  # [B][quota]
    unfinished: int  # planned episodes that did not end within the step budget

    @property
    def records(self) -> list[EpisodeRecord]:
        """All finished episodes, environment by environment."""
        return [record for records in self.episodes for record in records]


class Evaluator:
    """Starts evaluations of one agent; later evaluations reuse the first one's compilation."""

    def __init__(
        self,
        agent: Agent,
        plan: EvaluationPlan,
        *,
        device: jax.Device,
        num_training_envs: int,
        env_timeout_s: float | None = None,
        close_timeout_s: float = math.inf,
    ):
        """Prepare evaluations; compilation happens in the first one.

        Args:
            agent: the agent to evaluate.
            plan: the plan of every evaluation.
            device: the device that selects actions.
            num_training_envs: environments of all actors of all hosts in training, times their
                players.
            env_timeout_s: timeout per step and reset of `Interruptible` environments; None: no
                limit.
            close_timeout_s: timeout of closing the environments.
        """
        self.plan = plan
        self._env_timeout_s = env_timeout_s
        self._close_timeout_s = close_timeout_s
        self._agent = agent
        self._device = device
        self._num_training_envs = num_training_envs
        self._functions: StepFunctions | None = None

    def start(
        self,
        networks: Networks,
        *,
        env_steps: int,
        wrap: Callable[[Environment], Environment] = lambda environment: environment,
    ) -> "Evaluation":
        """Start an evaluation in new environments, so that each evaluation uses the same seeds.

        Args:
            networks: the result of `Agent.actor_networks`, on the device; never donated.
            env_steps: the env steps that the networks were trained for. Sampled actions explore as
                actors did then.
            wrap: returns the environment to play in, such as a recording one.

        Raises:
            ConfigError: there is no such environment.
            EnvironmentFault: its constructor or its reset failed.
        """
        environment = make_environment(
            self.plan.env,
            num_envs=len(self.plan.quota),
            seed=environment_seed(self.plan.seed, _STREAM),
            purpose="evaluate",
        )
        if isinstance(environment, Interruptible):
            environment.timeout_s = self._env_timeout_s
        environment = wrap(environment)
        with closed_on_error({_WHOSE: environment}, self._close_timeout_s):
            return self._start(networks, environment, env_steps)

    def _start(self, networks: Networks, environment: Environment, env_steps: int) -> "Evaluation":
        key = stream(jax.random.key(self.plan.seed), _STREAM)
        num_envs, num_players = len(self.plan.quota), environment.spec.num_players
        tracker = EpisodeTracker(max_finished=_SLICE_LENGTH * num_envs, num_players=num_players)
        carry = init_carry(
            self._agent,
            networks,
            call_environment("reset", environment.reset),
            key=key,
            global_actor_id=0,
            device=self._device,
            tracker=tracker,
        )
        if not self.plan.greedy:
            actor_state = init_actor_state(
                self._agent,
                networks,
                key,
                num_envs=num_envs * num_players,
                num_training_envs=self._num_training_envs,
                env_steps=env_steps,
                greedy=False,
            )
            # Committed to the device, like the results of a slice: the next would compile again.
            actor_state = jax.device_put(actor_state, self._device)
            carry = dataclasses.replace(carry, actor_state=actor_state)
        if self._functions is None:
            acting = self._agent
            if not self.plan.greedy:
                acting = cast(Agent, ActingAgent(self._agent, carry.actor_state))
            self._functions = StepFunctions(
                acting,
                trajectory_length=_SLICE_LENGTH,
                device=self._device,
                tracker=tracker,
                greedy=self.plan.greedy,
            )
        # Always stepped: every evaluation needs a new EnvPool pool, and since each pool is its own
        # custom call, a fused cycle would compile again for each.
        cycle = SteppedCycle(self._functions, environment, clock=WallClock())
        return Evaluation(
            plan=self.plan,
            networks=networks,
            environment=environment,
            close_timeout_s=self._close_timeout_s,
            cycle=cycle,
            carry=carry,
        )


class Evaluation:
    """An evaluation in progress."""

    def __init__(
        self,
        *,
        plan: EvaluationPlan,
        networks: Networks,
        environment: Environment,
        close_timeout_s: float,
        cycle: SteppedCycle,
        carry: ActCarry,
    ):
        self._plan = plan
        self._networks = networks
        self.environment = environment
        self._close_timeout_s = close_timeout_s
        self._cycle = cycle
        self._carry = carry
        self._quota = plan.quota
        self._episodes: list[list[EpisodeRecord]] = [[] for _ in self._quota]
        # The effective settings if the environment reports them, else the configured options.
        self.settings = (
            environment.settings()
            if isinstance(environment, DescribedEnvironment)
            else dict(plan.env.options)
        )
        # Each episode takes one more row than env steps: its reset.
        self._rows_left = int(self._quota.max()) * (plan.max_episode_steps + 1)

    @property
    def is_done(self) -> bool:
        """Whether every environment has played its quota or the step budget is used up."""
        return self._rows_left <= 0 or all(
            len(episodes) >= quota
            for episodes, quota in zip(self._episodes, self._quota, strict=True)
        )

    def advance(self) -> None:
        """Play one slice: `_SLICE_LENGTH` rows of every environment."""
        collected = self._cycle(self._networks, self._carry)
        self._carry = collected.carry
        self._record(collected.tally)
        self._rows_left -= _SLICE_LENGTH

    def result(self) -> PlayedEpisodes:
        """Return the finished episodes."""
        episodes = tuple(map(tuple, self._episodes))
        unfinished = self._plan.episodes - sum(map(len, episodes))
        return PlayedEpisodes(episodes=episodes, unfinished=unfinished)

    def close(self) -> list[CloseProblem]:
        """Release the environments, for a limited time; may be called twice.

        Returns:
            Why they are not closed; empty: they are.
        """
        return close_environments({_WHOSE: self.environment}, self._close_timeout_s)

    def _record(self, tally: Tally) -> None:
        """Record the episodes that ended in a slice, up to each environment's quota."""
        ended = jax.tree.map(np.asarray, tally.ended)
        finished = ended.episodes
        names = names_of_players(self.environment.spec.num_players)
        columns = [finished.reduced[name].tolist() for name in names]
        of_players = zip(*columns, strict=True) if columns else itertools.repeat(())
        episodes = zip(
            ended.env[ended.has_ended].tolist(),
            finished.episode_return.tolist(),
            finished.episode_length.tolist(),
            of_players,
            strict=bool(columns),
        )
        for env, episode_return, episode_length, returns in episodes:
            if len(self._episodes[env]) < self._quota[env]:
                record = EpisodeRecord(
                    episode_return=episode_return,
                    episode_length=episode_length,
                    returns_of_players=tuple(returns),
                )
                self._episodes[env].append(record)
