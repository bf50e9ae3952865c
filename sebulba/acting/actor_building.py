"""Builds an actor: its environments, the act cycle over them, and what makes them anew."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from sebulba.acting.act_cycle import ActCycle, BufferAllocator, init_carry
from sebulba.acting.actor import Actor
from sebulba.acting.episode_reducers import EpisodeTracker
from sebulba.acting.fused_cycle import FusedCycle
from sebulba.acting.renewal import LiveEnvironment, Renewal
from sebulba.acting.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.agent import Agent
from sebulba.agent_check import env_step_shapes
from sebulba.config import Config
from sebulba.devices.learner_devices import LearnerDevices
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
from sebulba.errors import ConfigError
from sebulba.ring.ledger import Ledger
from sebulba.ring.timing import WallClock
from sebulba.toolkit.prng import environment_seed
from sebulba.types import EnvStep, Networks, PyTree, RunSpec

# An environment that can give up by itself is to do so before the watchdog ends the run.
_SHARE_OF_TIMEOUT = 0.9


def make_first_environment(config: Config, number: int) -> Environment:
    """Makes the environments that an actor of a new run begins with.

    Args:
        config: the whole run's.
        number: of the actor, among those of all hosts.

    Raises:
        ConfigError: there is no such environment, or option of it.
        EnvironmentFault: its constructor failed.
    """
    with _as_fault(number, "its constructor"):
        return _make_environment(config, environment_seed(config.seed, "actor", number))


def make_actor(
    config: Config,
    *,
    actor_id: int,
    agent: Agent,
    run_spec: RunSpec,
    environment: Environment,
    device: jax.Device,
    networks: Networks,
    key: jax.Array,
    learners: LearnerDevices,
    ledger: Ledger,
    step_functions: StepFunctions,
    tracker: EpisodeTracker,
    number: int,
    on_warning: Callable[[str], None],
) -> Actor:
    """Builds an actor over its first environments.

    Args:
        config: the whole run's.
        actor_id: among the actors of this host.
        agent: the algorithm.
        run_spec: that the agent was built for.
        environment: has not been reset.
        device: the actor's.
        networks: on `device`.
        key: the actor's own, consumed.
        learners: take its trajectories.
        ledger: of this host.
        step_functions: of all actors on the device, with the same tracker.
        tracker: of episodes.
        number: of the actor, among those of all hosts.
        on_warning: takes one line of text, in the actor's thread.

    Raises:
        ConfigError: `actor.cycle` or `checkpoint.exact_reset_cycles` does not suit the environment.
        EnvironmentFault: the environment's reset failed, or gave what its spec does not say.
    """
    with _as_fault(number, "its reset"):
        env_step = _first_row(environment, run_spec)
    carry = init_carry(
        agent, networks, env_step, key=key, global_actor_id=number, device=device, tracker=tracker
    )
    length = config.actor.trajectory_length
    allocate = BufferAllocator(agent, networks, carry, trajectory_length=length, device=device)
    clock = WallClock()

    def start(environment: Environment, env_step: EnvStep) -> LiveEnvironment:
        fused = None if config.actor.cycle == "stepped" else environment.fused()
        if fused is None and config.actor.cycle == "fused":
            raise ConfigError(
                f"actor.cycle: {config.env.suite} {config.env.id} cannot be stepped inside jit;"
                " expected auto or stepped, got fused"
            )
        shared: dict[str, Any] = {
            "allocate": allocate,
            "trajectory_length": length,
            "clock": clock,
            "whole_episodes": config.actor.rollout == "episodes",
        }
        if config.actor.rollout == "episodes":
            _check_whole_episodes(config, environment, fused, env_step)
        act_cycle: ActCycle
        env_state: PyTree = None
        if fused is None:
            act_cycle = SteppedCycle(step_functions, environment, **shared)
            if isinstance(environment, WholeState):
                env_state = environment.whole_state
        else:
            act_cycle = FusedCycle(agent, fused, device=device, tracker=tracker, **shared)
            if fused.is_whole_state:
                env_state = fused.state
        return LiveEnvironment(
            environment=environment,
            act_cycle=act_cycle,
            env_step=env_step,
            env_state=jax.device_put(env_state, device),
        )

    def make(seed: int) -> LiveEnvironment:
        environment = _make_environment(config, seed)
        try:
            return start(environment, _first_row(environment, run_spec))
        except Exception:
            environment.close()
            raise

    live = start(environment, env_step)
    if live.env_state is not None and config.checkpoint.exact_reset_cycles is not None:
        raise ConfigError(
            "checkpoint.exact_reset_cycles: expected null: the environments of"
            f" {config.env.suite} {config.env.id} are stored as they are, which is exact without"
        )
    restarts = config.actor.on_env_error == "restart"
    return Actor(
        actor_id=actor_id,
        agent=agent,
        live=live,
        renewal=Renewal(
            make=make,
            seed=config.seed,
            number=number,
            every=config.checkpoint.exact_reset_cycles,
            max_restarts=config.actor.max_env_restarts if restarts else 0,
            on_warning=on_warning,
        ),
        carry=dataclasses.replace(carry, env_state=live.env_state),
        learner_devices=learners,
        ledger=ledger,
        clock=clock,
    )


def _check_whole_episodes(
    config: Config, environment: Environment, fused: FusedEnvironment | None, env_step: EnvStep
) -> None:
    where = f"{config.env.suite} {config.env.id}"
    can_restart = isinstance(environment, Restartable) if fused is None else fused.restart
    if not can_restart:
        raise ConfigError(
            f"actor.rollout: the environments of {where} cannot begin new episodes all at once;"
            " expected steps, got episodes"
        )
    if env_step.episode_over is not None:
        raise ConfigError(
            f"actor.rollout: a lost life is no whole game in {where}; expected steps, or"
            " env.options.episodic_life false, got episodes"
        )


def _make_environment(config: Config, seed: int) -> Environment:
    environment = make_environment(config.env, num_envs=config.actor.num_envs, seed=seed)
    if isinstance(environment, Interruptible) and config.actor.env_timeout_s is not None:
        environment.timeout_s = _SHARE_OF_TIMEOUT * config.actor.env_timeout_s
    return environment


def _first_row(environment: Environment, run_spec: RunSpec) -> EnvStep:
    env_step = environment.reset()
    shapes = env_step_shapes(run_spec)
    if env_step.episode_over is not None:
        shapes = dataclasses.replace(shapes, episode_over=shapes.is_first)
    check_structure(env_step, shapes)
    return env_step


@contextlib.contextmanager
def _as_fault(number: int, what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        fault = error
        if not isinstance(error, EnvironmentFault):
            fault = EnvironmentFault(f"{what} raised {type(error).__name__}: {error}")
        fault.add_note(f"This happened in actor {number}, before its first cycle.")
        raise fault from (None if fault is error else error)
