"""The environments of one actor, and the act cycle over them: the first ones and all later ones."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from sebulba.acting.act_cycle import ActCycle, BufferAllocator
from sebulba.acting.env_reset import LiveEnvironment
from sebulba.acting.fused_cycle import FusedCycle, SharedFunctions
from sebulba.acting.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.agent_check import env_step_shapes
from sebulba.config import Config
from sebulba.envs import make_environment
from sebulba.envs.base import (
    Environment,
    EnvironmentFault,
    FusedEnvironment,
    Interruptible,
    Restartable,
    WholeState,
)
from sebulba.envs.data_checks import check_structure
from sebulba.errors import PLACE, ConfigError
from sebulba.ring.timing import WallClock
from sebulba.toolkit.prng import environment_seed
from sebulba.toolkit.spaces import action_shape, zeros
from sebulba.types import EnvStep, PyTree, RunSpec

# An environment with a timeout of its own is to raise before the watchdog ends the whole run.
_SHARE_OF_TIMEOUT = 0.9
# Where functions of environments outside JAX are known to work inside jit.
_PLATFORMS_OF_FUSED = ("cpu",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CycleParts:
    """What an act cycle is made of, but for the environments."""

    run_spec: RunSpec
    device: jax.Device
    # The next two are shared by the device's actors.
    step_functions: StepFunctions
    fused_functions: SharedFunctions
    allocate: BufferAllocator
    clock: WallClock
    on_warning: Callable[[str], None]  # takes a line of text


def make_first_environment(config: Config, global_actor_id: int) -> Environment:
    """Make the environments that an actor of a new run begins with.

    Raises:
        ConfigError: there is no such environment, or option of it.
        EnvironmentFault: its constructor failed.
    """
    with _as_fault(global_actor_id, "its constructor"):
        seed = environment_seed(config.seed, "actor", global_actor_id)
        return _make_environment(config, seed)


def first_row(environment: Environment, run_spec: RunSpec, global_actor_id: int) -> EnvStep:
    """Reset an actor's first environments and return their row `[B]`.

    Raises:
        EnvironmentFault: `reset` failed, or its result is not as the environment's spec says.
    """
    with _as_fault(global_actor_id, "its reset"):
        return _reset(environment, run_spec)


class EnvironmentFactory:
    """Puts act cycles over an actor's environments, and recreates both."""

    def __init__(self, config: Config, parts: CycleParts):
        self._config = config
        self._parts = parts

    def recreate(self, seed: int) -> LiveEnvironment:
        """Make and reset new environments, and build the act cycle over them."""
        environment = _make_environment(self._config, seed)
        try:
            return self.start(environment, _reset(environment, self._parts.run_spec))
        except Exception:
            environment.close()
            raise

    def start(self, environment: Environment, env_step: EnvStep) -> LiveEnvironment:
        """Build the act cycle over environments that have been reset.

        Raises:
            ConfigError: `actor.cycle`, `actor.rollout` or `checkpoint.exact_reset_cycles` does not
                suit the environment.
        """
        config, parts = self._config, self._parts
        where = f"{config.env.suite} {config.env.id}"
        fused = None if config.actor.cycle == "stepped" else environment.fused()
        if fused is not None and config.actor.cycle == "auto":
            fused = self._if_compiled(fused, where)
        if fused is None and config.actor.cycle == "fused":
            raise ConfigError(
                f"actor.cycle: expected auto or stepped, got fused; {where} cannot be stepped"
                " inside jit"
            )
        whole_episodes = config.actor.rollout == "episodes"
        if whole_episodes:
            _check_whole_episodes(where, environment, fused, env_step)
        shared: dict[str, Any] = {
            "allocate": parts.allocate,
            "clock": parts.clock,
            "whole_episodes": whole_episodes,
        }
        act_cycle: ActCycle
        env_state: PyTree = None
        if fused is None:
            act_cycle = SteppedCycle(
                parts.step_functions,
                environment,
                trajectory_length=config.actor.trajectory_length,
                **shared,
            )
            if isinstance(environment, WholeState):
                env_state = environment.whole_state
        else:
            functions = parts.fused_functions.of(fused)
            act_cycle = FusedCycle(functions, fused, **shared)
            if fused.is_whole_state:
                env_state = fused.state
        if env_state is not None and config.checkpoint.exact_reset_cycles is not None:
            raise ConfigError(
                "checkpoint.exact_reset_cycles: expected null, got"
                f" {config.checkpoint.exact_reset_cycles}; checkpoints hold the environments of"
                f" {where} themselves, so that resuming is exact without it"
            )
        return LiveEnvironment(
            environment=environment,
            act_cycle=act_cycle,
            env_step=env_step,
            env_state=jax.device_put(env_state, parts.device),
        )

    def _if_compiled(self, fused: FusedEnvironment, where: str) -> FusedEnvironment | None:
        """Return the environment if an accelerator can step it, which only compiling tells."""
        parts = self._parts
        if fused.is_whole_state or parts.device.platform in _PLATFORMS_OF_FUSED:
            return fused
        spec, num_envs = parts.run_spec.environment, self._config.actor.num_envs
        placed = jax.sharding.SingleDeviceSharding(parts.device)
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
            (fused.state, zeros(action_shape(spec.action_space), num_envs)),
        )
        try:
            jax.jit(fused.step).lower(*arguments).compile()
        except Exception as error:
            problem = next(iter(str(error).splitlines()), type(error).__name__)
            parts.on_warning(
                f"actor.cycle: auto steps {where} from Python, since it cannot be stepped inside"
                f" jit on {parts.device.platform}: {problem}"
            )
            return None
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


def _make_environment(config: Config, seed: int) -> Environment:
    environment = make_environment(config.env, num_envs=config.actor.num_envs, seed=seed)
    if isinstance(environment, Interruptible) and config.actor.env_timeout_s is not None:
        environment.timeout_s = _SHARE_OF_TIMEOUT * config.actor.env_timeout_s
    return environment


def _reset(environment: Environment, run_spec: RunSpec) -> EnvStep:
    env_step = environment.reset()
    shapes = env_step_shapes(run_spec)
    if env_step.episode_over is not None:
        shapes = dataclasses.replace(shapes, episode_over=shapes.is_first)
    check_structure(env_step, shapes)
    return env_step


@contextlib.contextmanager
def _as_fault(global_actor_id: int, what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        fault = error
        if not isinstance(error, EnvironmentFault):
            fault = EnvironmentFault(f"{what} raised {type(error).__name__}: {error}")
        fault.add_note(f"{PLACE} actor {global_actor_id}, before its first cycle.")
        raise fault from (None if fault is error else error)
