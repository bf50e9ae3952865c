"""Plays a fixed number of episodes with fixed networks, a slice at a time.

Which episodes count is settled before the first is played: environment `b` plays the first
`quota[b]` of its own. Taking the first so many that end, over all environments, would count short
episodes too often.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from sebulba.acting.act_cycle import ActCarry, BufferAllocator, init_carry
from sebulba.acting.episode_reducers import EpisodeTracker
from sebulba.acting.episodes import EpisodeStatistics
from sebulba.acting.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.agent import Agent
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import DescribedEnvironment, Environment, Interruptible
from sebulba.ring.timing import WallClock
from sebulba.toolkit.prng import environment_seed, stream
from sebulba.types import EpisodeRecord, Networks

_SLICE_LENGTH = 16  # env steps of each environment between two looks at the clock
_STREAM = "evaluation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Which episodes are played, and how."""

    env: EnvConfig
    episodes: int
    num_envs: int  # at most; never more than episodes
    max_episode_steps: int  # env steps that an environment is given for each of its episodes
    greedy: bool
    seed: int

    @property
    def quota(self) -> np.ndarray:
        """`[B]` int, the episodes of each environment; they differ by one at most."""
        num_envs = min(self.num_envs, self.episodes)
        share, rest = divmod(self.episodes, num_envs)
        return np.array([share + (b < rest) for b in range(num_envs)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayedEpisodes:
    """What an evaluation gave; the episodes of each environment in the order of its playing."""

    episodes: tuple[tuple[EpisodeRecord, ...], ...]  # [B][quota]
    unfinished: int  # episodes of the plan that were not over within the steps allowed

    @property
    def records(self) -> list[EpisodeRecord]:
        """All episodes, environment by environment."""
        return [record for of_one in self.episodes for record in of_one]


class Evaluator:
    """Starts evaluations of one agent; what they compute is compiled for the first alone."""

    def __init__(
        self,
        agent: Agent,
        plan: EvaluationPlan,
        *,
        device: jax.Device,
        env_timeout_s: float | None = None,
    ):
        """Compiles nothing yet.

        Args:
            agent: whose policy is played.
            plan: of every evaluation.
            device: that acts.
            env_timeout_s: for a step or a reset of environments that can give up waiting; None: as
                long as it takes.
        """
        self.plan = plan
        self._env_timeout_s = env_timeout_s
        self._agent = agent
        self._device = device
        self._functions = StepFunctions(agent, device=device, greedy=plan.greedy)

    def start(
        self,
        networks: Networks,
        *,
        wrap: Callable[[Environment], Environment] = lambda environment: environment,
    ) -> "Evaluation":
        """Makes new environments, so that every evaluation plays from the same seeds.

        Args:
            networks: as `Agent.actor_networks` gives them, on the device; never donated.
            wrap: is given the environment, and gives the one to play in: to record it, say.

        Raises:
            ConfigError: the environment cannot be made.
        """
        environment = make_environment(
            self.plan.env,
            num_envs=len(self.plan.quota),
            seed=environment_seed(self.plan.seed, _STREAM),
        )
        if isinstance(environment, Interruptible):
            environment.timeout_s = self._env_timeout_s
        environment = wrap(environment)
        try:
            return self._start(networks, environment)
        except BaseException:
            environment.close()
            raise

    def _start(self, networks: Networks, environment: Environment) -> "Evaluation":
        carry = init_carry(
            self._agent,
            networks,
            environment.reset(),
            key=stream(jax.random.key(self.plan.seed), _STREAM),
            global_actor_id=0,
            device=self._device,
            tracker=EpisodeTracker(),
        )
        allocate = BufferAllocator(
            self._agent, networks, carry, trajectory_length=_SLICE_LENGTH, device=self._device
        )
        # Stepped, also where the environment could be stepped inside `jit`: a fused cycle of
        # EnvPool is compiled anew for each pool, and every evaluation needs a new pool.
        cycle = SteppedCycle(
            self._functions,
            environment,
            allocate=allocate,
            trajectory_length=_SLICE_LENGTH,
            clock=WallClock(),
        )
        return Evaluation(
            plan=self.plan, networks=networks, environment=environment, cycle=cycle, carry=carry
        )


class Evaluation:
    """An evaluation under way."""

    def __init__(
        self,
        *,
        plan: EvaluationPlan,
        networks: Networks,
        environment: Environment,
        cycle: SteppedCycle,
        carry: ActCarry,
    ):
        self._plan = plan
        self._networks = networks
        self._environment = environment
        self._cycle = cycle
        self._carry = carry
        self._quota = plan.quota
        self._episodes: list[list[EpisodeRecord]] = [[] for _ in self._quota]
        # What the environment was made with; what the config says where it cannot tell.
        self.settings = (
            environment.settings()
            if isinstance(environment, DescribedEnvironment)
            else dict(plan.env.options)
        )
        self._rows_left = int(self._quota.max()) * (plan.max_episode_steps + 1)

    @property
    def is_over(self) -> bool:
        """Whether every environment has played its quota, or there are no steps left."""
        return self._rows_left <= 0 or all(
            len(episodes) >= quota
            for episodes, quota in zip(self._episodes, self._quota, strict=True)
        )

    def advance(self) -> None:
        """Plays some steps of every environment."""
        self._carry, result = self._cycle(self._networks, self._carry)
        self._take(jax.tree.map(np.asarray, result.episodes))
        self._rows_left -= _SLICE_LENGTH

    def result(self) -> PlayedEpisodes:
        """Returns the episodes that are over."""
        episodes = tuple(tuple(of_one) for of_one in self._episodes)
        finished = sum(len(of_one) for of_one in episodes)
        return PlayedEpisodes(episodes=episodes, unfinished=self._plan.episodes - finished)

    def close(self) -> None:
        """Releases the environments; may be called twice."""
        self._environment.close()

    def _take(self, rows: EpisodeStatistics) -> None:
        """Takes the rows of a slice in, `[T, B]`; what an environment plays on top is ignored."""
        for t, b in np.argwhere(rows.is_over):
            if len(self._episodes[b]) < self._quota[b]:
                record = EpisodeRecord(
                    episode_return=float(rows.episode_return[t, b]),
                    episode_length=int(rows.episode_length[t, b]),
                )
                self._episodes[b].append(record)
