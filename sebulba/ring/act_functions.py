"""The jitted functions of a device's act cycles, and the cycle that suits an environment."""

import dataclasses
import functools
from collections.abc import Callable

import jax

from sebulba.agent import Agent
from sebulba.config import ActorConfig
from sebulba.envs.base import (
    Environment,
    FusedEnvironment,
    Restartable,
    WholeState,
)
from sebulba.errors import ConfigError
from sebulba.ring.act_cycle import ActCycle
from sebulba.ring.clocks import WallClock
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.fused_cycle import FusedCycle, FusedFunctions, SharedFunctions
from sebulba.ring.records import ActCarry, Collected
from sebulba.ring.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.types import EnvStep, FrameStack, Networks, PyTree, RunSpec

# Where `actor.cycle: auto` steps environments outside JAX inside jit. An accelerator's stream waits
# for them, with the updates behind them. And a program that holds a pool's address is compiled
# again at each start.
_PLATFORMS_OF_FUSED = ("cpu",)


class ActFunctions:
    """The jitted functions of act cycles on one device; they do not depend on the seed.

    The actors of the device share them, and so do later rings that differ in their seed.
    """

    def __init__(
        self,
        agent: Agent,
        run_spec: RunSpec,
        *,
        device: jax.Device,
        tracker: EpisodeTracker | None = None,
        frame_stack: FrameStack | None = None,
    ):
        """Trace and compile nothing yet.

        Args:
            agent: the algorithm.
            run_spec: the run's facts.
            device: acts.
            tracker: follows the episodes; None: one without custom metrics.
            frame_stack: how observations stack the frames that trajectories hold once; None: they
                hold the observations.
        """
        self.agent = agent
        self.run_spec = run_spec
        self.device = device
        self.tracker = tracker or EpisodeTracker()
        options = {
            "trajectory_length": run_spec.trajectory_length,
            "device": device,
            "tracker": self.tracker,
            "frame_stack": frame_stack,
        }
        self.stepped = StepFunctions(agent, **options)
        self.fused = SharedFunctions(functools.partial(FusedFunctions, agent, **options))

    def shapes(self, networks: Networks, carry: ActCarry) -> Collected:
        """Return the shapes of what an act cycle collects, whatever its kind."""
        _, buffer = jax.eval_shape(self.stepped.begin, networks, carry.actor_state, carry.env_step)
        statistics, trajectory, tally = jax.eval_shape(
            self.stepped.finish, buffer, carry.statistics, carry.env_step
        )
        after = dataclasses.replace(carry, statistics=statistics)
        return Collected(carry=jax.eval_shape(lambda: after), trajectory=trajectory, tally=tally)

    def act_cycle(
        self,
        environment: Environment,
        env_step: EnvStep,
        settings: ActorConfig,
        *,
        where: str,
        clock: WallClock,
        on_warning: Callable[[str], None],
    ) -> tuple[ActCycle, PyTree]:
        """Return the act cycle over environments, and their complete state on the device.

        The state is None if it cannot be stored.

        Args:
            environment: has been reset.
            env_step: the row of the reset.
            settings: `actor`, of which the kind of act cycle and the rollout are used.
            where: the environment's name, for errors and warnings.
            clock: the clock of the thread that calls the cycle.
            on_warning: takes one line of text.

        Raises:
            ConfigError: `actor.cycle` or `actor.rollout` does not suit the environment.
        """
        fused = choose_fused(
            environment,
            settings,
            where=where,
            env_step=env_step,
            device=self.device,
            on_warning=on_warning,
        )
        whole_episodes = settings.rollout == "episodes"
        cycle: ActCycle
        env_state: PyTree = None
        if fused is None:
            cycle = SteppedCycle(
                self.stepped, environment, clock=clock, whole_episodes=whole_episodes
            )
            if isinstance(environment, WholeState):
                env_state = environment.whole_state
        else:
            functions = self.fused.of(fused)
            cycle = FusedCycle(functions, fused, clock=clock, whole_episodes=whole_episodes)
            if fused.is_whole_state:
                env_state = fused.state
        return cycle, jax.device_put(env_state, self.device)


def choose_fused(
    environment: Environment,
    settings: ActorConfig,
    *,
    where: str,
    env_step: EnvStep,
    device: jax.Device,
    on_warning: Callable[[str], None],
) -> FusedEnvironment | None:
    """Return the environment to step inside `jit`; None: it is stepped from Python.

    Args:
        environment: has been reset.
        settings: `actor`, of which the kind of act cycle and the rollout are used.
        where: the environment's name.
        env_step: the row of the reset.
        device: the actor's device.
        on_warning: takes one line of text.

    Raises:
        ConfigError: `actor.cycle` or `actor.rollout` does not suit the environment.
    """
    fused = None if settings.cycle == "stepped" else environment.fused()
    is_chosen = settings.cycle == "auto" and fused is not None and not fused.is_whole_state
    if is_chosen and device.platform not in _PLATFORMS_OF_FUSED:
        fused = None
        on_warning(
            f"actor.cycle: auto steps {where} from Python, since inside jit {device.platform} would"
            " wait for it"
        )
    if fused is None and settings.cycle == "fused":
        raise ConfigError(
            f"actor.cycle: expected auto or stepped, got fused; {where} cannot be stepped"
            " inside jit"
        )
    if fused is None and environment.spec.opponents is not None:
        raise ConfigError(
            f"actor.cycle: expected auto or fused, got stepped; the networks that move for the"
            f" opponent of {where} are available only inside jit"
        )
    if settings.rollout == "episodes":
        _check_whole_episodes(where, environment, fused, env_step)
    return fused


def _check_whole_episodes(
    where: str, environment: Environment, fused: FusedEnvironment | None, env_step: EnvStep
) -> None:
    can_restart = isinstance(environment, Restartable) if fused is None else fused.restart
    if not can_restart:
        raise ConfigError(
            f"actor.rollout: expected steps, got episodes; the environments of {where} cannot be"
            " reset together"
        )
    if env_step.episode_over is not None:
        raise ConfigError(
            f"actor.rollout: expected steps, got episodes; in {where} a lost life ends an episode"
            " but not the game. Set env.options.episodic_life false"
        )
