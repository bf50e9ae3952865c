"""One actor's environments and the act cycle over them: made, reset and recreated."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import jax

from sebulba.agent_check import env_step_shapes
from sebulba.config import ActorConfig, EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import (
    Environment,
    EnvironmentFault,
    FusedEnvironment,
    Interruptible,
    Restartable,
    WholeState,
)
from sebulba.envs.closing import close_environments
from sebulba.envs.data_checks import check_structure
from sebulba.errors import PLACE, ConfigError, describe_error
from sebulba.ring.act_cycle import ActCycle
from sebulba.ring.clocks import WallClock
from sebulba.ring.fused_cycle import FusedCycle, SharedFunctions
from sebulba.ring.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.toolkit.prng import environment_seed
from sebulba.toolkit.spaces import action_shape, zeros
from sebulba.types import EnvironmentSpec, EnvStep, PyTree, RunSpec

# An environment with a timeout of its own is to raise before the watchdog ends the whole run.
_SHARE_OF_TIMEOUT = 0.9
# Where functions of environments outside JAX are known to work inside jit.
_PLATFORMS_OF_FUSED = ("cpu",)


class ActorEnvironments:
    """One actor's environments, and the act cycle over them.

    They are recreated after a fault, at fixed actor cycles (so that a checkpoint need not hold
    them), and when a run resumes whose environments cannot be stored. Recreated environments begin
    a new stream: its row 0 is a reset although the row before ended no episode, as after a
    truncation whose final observation was lost.
    """

    def __init__(
        self,
        env: EnvConfig,
        settings: ActorConfig,
        *,
        run_seed: int,
        global_actor_id: int,
        close_timeout_s: float,
        recreate_every: int | None = None,
    ):
        """Make the environments that an actor of a new run begins with.

        Args:
            env: names the environments.
            settings: `actor`, of which the number of environments, the timeout and the kind of act
                cycle are used.
            run_seed: seeds all environments of the run.
            global_actor_id: the actor's number among all actors of all hosts.
            close_timeout_s: `run.close_timeout_s`, before environments are recreated.
            recreate_every: actor cycles after which the environments are recreated; None: never.

        Raises:
            ConfigError: there is no such environment, or option of it.
            EnvironmentFault: its constructor failed.
        """
        self._env = env
        self._settings = settings
        self._run_seed = run_seed
        self._global_actor_id = global_actor_id
        self._close_timeout_s = close_timeout_s
        self._recreate_every = recreate_every
        with self._as_fault("its constructor"):
            self.environment = self._make(environment_seed(run_seed, "actor", global_actor_id))
        self.act_cycle: ActCycle

    @property
    def spec(self) -> EnvironmentSpec:
        """The spaces of a single environment."""
        return self.environment.spec

    def start(
        self,
        run_spec: RunSpec,
        step_functions: StepFunctions,
        fused_functions: SharedFunctions,
        *,
        clock: WallClock,
        on_warning: Callable[[str], None],
    ) -> tuple[EnvStep, PyTree]:
        """Reset the first environments, and build the act cycle over them.

        Args:
            run_spec: says what rows look like.
            step_functions: shared by the actors of the device.
            fused_functions: likewise.
            clock: the actor thread's clock.
            on_warning: takes a line of text.

        Returns:
            The first row `[B]`, and the complete state of the environments on the actor's device;
            None if it cannot be stored.

        Raises:
            EnvironmentFault: `reset` failed, or its result is not as the environment's spec says.
            ConfigError: `actor.cycle`, `actor.rollout` or `checkpoint.exact_reset_cycles` does not
                suit the environment.
        """
        self._run_spec = run_spec
        self._step_functions = step_functions
        self._fused_functions = fused_functions
        self._clock = clock
        self._on_warning = on_warning
        with self._as_fault("its reset"):
            env_step = self._reset()
        return env_step, self._build_cycle(env_step)

    def is_recreated_before(self, num_cycles: int) -> bool:
        """Whether environments are recreated before cycle `num_cycles`, resumed there or not."""
        every = self._recreate_every
        return every is not None and num_cycles > 0 and num_cycles % every == 0

    def recreate(self, num_cycles: int, attempt: int = 0) -> tuple[EnvStep, PyTree]:
        """Close the environments, and make and start others in their place.

        A `close` that raises or hangs costs a warning.

        Args:
            num_cycles: cycles that the actor has completed.
            attempt: number of faults in this cycle, so that a failed episode is not repeated.

        Returns:
            As `start`.

        Raises:
            EnvironmentFault: the constructor or `reset` failed.
        """
        problems = close_environments(
            {f"actor {self._global_actor_id}": self}, self._close_timeout_s
        )
        for problem in problems:
            self._on_warning(str(problem))
        names = ("actor", self._global_actor_id, "cycle", num_cycles)
        seed = environment_seed(self._run_seed, *names, *(("attempt", attempt) if attempt else ()))
        try:
            self.environment = self._make(seed)
            env_step = self._reset()
            return env_step, self._build_cycle(env_step)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"its constructor or reset raised {describe_error(error)}"
            ) from error

    def close(self) -> None:
        """Release the environments; no cycle may be running."""
        self.environment.close()

    def _make(self, seed: int) -> Environment:
        environment = make_environment(self._env, num_envs=self._settings.num_envs, seed=seed)
        timeout_s = self._settings.env_timeout_s
        if isinstance(environment, Interruptible) and timeout_s is not None:
            environment.timeout_s = _SHARE_OF_TIMEOUT * timeout_s
        return environment

    def _reset(self) -> EnvStep:
        env_step = self.environment.reset()
        shapes = env_step_shapes(self._run_spec)
        if env_step.episode_over is not None:
            shapes = dataclasses.replace(shapes, episode_over=shapes.is_first)
        check_structure(env_step, shapes)
        return env_step

    def _build_cycle(self, env_step: EnvStep) -> PyTree:
        """Build the act cycle, and return the environments' complete state or None."""
        where, whole_episodes = where_of(self._env), self._settings.rollout == "episodes"
        fused = choose_fused(
            self.environment,
            self._settings,
            where=where,
            env_step=env_step,
            device=self._step_functions.device,
            on_warning=self._on_warning,
        )
        env_state: PyTree = None
        if fused is None:
            self.act_cycle = SteppedCycle(
                self._step_functions,
                self.environment,
                clock=self._clock,
                whole_episodes=whole_episodes,
            )
            if isinstance(self.environment, WholeState):
                env_state = self.environment.whole_state
        else:
            functions = self._fused_functions.of(fused)
            self.act_cycle = FusedCycle(
                functions, fused, clock=self._clock, whole_episodes=whole_episodes
            )
            if fused.is_whole_state:
                env_state = fused.state
        if env_state is not None and self._recreate_every is not None:
            raise ConfigError(
                f"checkpoint.exact_reset_cycles: expected null, got {self._recreate_every};"
                f" checkpoints hold the environments of {where} themselves, so that resuming is"
                " exact without it"
            )
        return jax.device_put(env_state, self._step_functions.device)

    @contextlib.contextmanager
    def _as_fault(self, what: str) -> Iterator[None]:
        """Raise errors of the first environments as faults that name the actor."""
        try:
            yield
        except ConfigError:
            raise
        except BaseException as error:  # A constructor may exit.
            fault = error
            if not isinstance(error, EnvironmentFault):
                fault = EnvironmentFault(f"{what} raised {describe_error(error)}")
            fault.add_note(f"{PLACE} actor {self._global_actor_id}, before its first cycle.")
            raise fault from (None if fault is error else error)


def where_of(env: EnvConfig) -> str:
    """Return the environment's suite and ID, for errors and warnings."""
    return f"{env.suite} {env.id}"


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
        device: the actor's device, for which a program can be compiled.
        on_warning: takes one line of text.

    Raises:
        ConfigError: `actor.cycle` or `actor.rollout` does not suit the environment.
    """
    fused = None if settings.cycle == "stepped" else environment.fused()
    if fused is not None and settings.cycle == "auto":
        problem = _problem_on(device, fused, environment, settings.num_envs)
        if problem is not None:
            fused = None
            on_warning(
                f"actor.cycle: auto steps {where} from Python, since it cannot be stepped inside"
                f" jit on {device.platform}: {problem}"
            )
    if fused is None and settings.cycle == "fused":
        raise ConfigError(
            f"actor.cycle: expected auto or stepped, got fused; {where} cannot be stepped"
            " inside jit"
        )
    if settings.rollout == "episodes":
        _check_whole_episodes(where, environment, fused, env_step)
    return fused


def _problem_on(
    device: jax.Device, fused: FusedEnvironment, environment: Environment, num_envs: int
) -> str | None:
    """Return why a device cannot step the environment, which only compiling tells."""
    if fused.is_whole_state or device.platform in _PLATFORMS_OF_FUSED:
        return None
    actions = zeros(action_shape(environment.spec.action_space), num_envs)
    placed = jax.sharding.SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), (fused.state, actions)
    )
    try:
        jax.jit(fused.step).lower(*arguments).compile()
    except Exception as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


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
