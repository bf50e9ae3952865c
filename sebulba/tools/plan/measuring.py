"""The parts of a ring, each timed alone on the devices that will run it."""

import dataclasses
import time
from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import Config
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.devices.split import plan_learner_devices
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.run.assembly import Ring, assemble
from sebulba.tools.plan.model import Cost, Parts
from sebulba.types import EnvStep, PyTree

_MANY = 2**31 - 1


def measure_parts(config: Config, *, seconds: float) -> Parts:
    """Returns what the parts of a config's ring cost, each with nothing else running.

    Each part first runs twice, so that it is compiled. A learner cycle is one of the middle of the
    run, where a replay agent learns; the experience may hold less than it will then, which changes
    nothing about the time. Networks that learn from it are thrown away.

    Args:
        config: as for training; its threads are not all needed.
        seconds: to spend on each part, compilation not counted.
    """
    ring = assemble(for_measuring(config), write_row=lambda row: None)
    try:
        act = _cost(_acting(ring), seconds)
        update = _cost(learner_cycle(ring, config), seconds)
        transfer = _cost(_placing(ring, plan_learner_devices(config.devices)), seconds / 4)
    finally:
        ring.close_environments()
    environment = _cost(_stepping(config), seconds)
    return Parts(
        act=act,
        environment=environment,
        transfer=transfer,
        update=update,
        env_steps=config.actor.num_envs * config.actor.trajectory_length,
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
    )


def for_measuring(config: Config) -> Config:
    """Returns the config of a ring whose parts are timed one by one: it has one actor a device."""
    # A replay that has not been filled may give losses that are not finite.
    return dataclasses.replace(
        config,
        actor=dataclasses.replace(config.actor, threads_per_device=1),
        learner=dataclasses.replace(
            config.learner, on_non_finite="skip", max_non_finite_updates=_MANY
        ),
    )


def _cost(work: Callable[[], None], seconds: float) -> Cost:
    """Returns the mean cost of `work`, repeated for that long, at least thrice."""
    for _ in range(2):
        work()
    repeats, wall, cores = 0, time.perf_counter(), time.process_time()
    while repeats < 3 or time.perf_counter() - wall < seconds:
        work()
        repeats += 1
    return Cost(
        wall_s=(time.perf_counter() - wall) / repeats,
        core_s=(time.process_time() - cores) / repeats,
    )


def _acting(ring: Ring) -> Callable[[], None]:
    actor, networks = ring.actors[0], ring.learner.networks_on(ring.actor_devices[0])

    def act() -> None:
        jax.block_until_ready(actor.run_cycle(networks, 0).trajectory)

    return act


def learner_cycle(ring: Ring, config: Config) -> Callable[[], None]:
    """Returns work: a learner cycle of the middle of the run, its networks staged."""
    networks = ring.learner.networks_on(ring.actor_devices[0])
    items = [
        ring.actors[0].run_cycle(networks, 0) for _ in range(config.learner.trajectories_per_cycle)
    ]
    env_steps = sum(item.env_steps for item in items)
    ring.learner.num_cycles = config.run.total_env_steps // (2 * env_steps)

    def learn() -> None:
        ring.learner.run_cycle(items)
        ring.learner.stage(ring.stagings)

    return learn


def _placing(ring: Ring, learners: LearnerDevices) -> Callable[[], None]:
    """Places a trajectory, which comes from an actor device, on the learner devices."""
    item = ring.actors[0].run_cycle(ring.learner.networks_on(ring.actor_devices[0]), 0)
    trajectory = jax.device_put(item.trajectory, ring.actor_devices[0])

    def place() -> None:
        jax.block_until_ready(learners.split(trajectory, axis=1))

    return place


def _stepping(config: Config) -> Callable[[], None]:
    """Steps a trajectory's rows with random actions, fused or not, as the config's actors do."""
    environment = make_environment(config.env, num_envs=config.actor.num_envs, seed=0)
    environment.reset()
    actions = random_actions(environment, config.actor.trajectory_length)
    fused = None if config.actor.cycle == "stepped" else environment.fused()
    if fused is None:

        def step() -> None:
            for action in actions:
                environment.step(action)

        return step

    @jax.jit
    def scan(state: PyTree, actions: PyTree) -> tuple[PyTree, EnvStep]:
        return jax.lax.scan(fused.step, state, actions)

    state, stacked = fused.state, jax.tree.map(lambda *x: jnp.stack(x), *actions)

    def step_in_scan() -> None:
        nonlocal state
        state, rows = scan(state, stacked)
        jax.block_until_ready(rows)

    return step_in_scan


def random_actions(environment: Environment, count: int) -> list[np.ndarray]:
    """Returns `count` actions `[B, ...]` of the environment's action space."""
    space = gymnasium.vector.utils.batch_space(environment.spec.action_space, environment.num_envs)
    space.seed(0)
    dtype = environment.spec.action_space.dtype
    return [np.asarray(space.sample(), dtype) for _ in range(count)]
