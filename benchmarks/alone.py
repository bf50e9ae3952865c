"""Act cycles without a ring, and the parts of acting, each running alone."""

from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.envs.base import Environment
from sebulba.ring.act_cycle import init_carry
from sebulba.ring.clocks import WallClock
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.fused_cycle import FusedCycle, FusedFunctions
from sebulba.ring.records import ActCarry
from sebulba.types import EnvironmentSpec, EnvStep, Networks, PyTree, RunSpec


def acting_spec(environment: EnvironmentSpec, *, num_envs: int, trajectory_length: int) -> RunSpec:
    """Return the specification of an agent for one actor, and a learner that is not made."""
    return RunSpec(
        environment=environment,
        num_envs=num_envs,
        num_actors=1,
        num_learner_devices=1,
        trajectory_length=trajectory_length,
        trajectories_per_cycle=1,
        total_env_steps=1,
    )


def first_carry(
    agent: Agent, networks: Networks, env_step: EnvStep, *, device: jax.Device
) -> ActCarry:
    """Return the carry of a first act cycle, from the row `[B]` of a reset."""
    return init_carry(
        agent,
        networks,
        env_step,
        key=jax.random.key(1),
        global_actor_id=0,
        device=device,
        tracker=EpisodeTracker(),
    )


def fused_cycle(
    agent: Agent, environment: Environment, *, trajectory_length: int, device: jax.Device
) -> FusedCycle:
    """Return a fused act cycle over a reset fusible environment."""
    fused = environment.fused()
    assert fused is not None
    functions = FusedFunctions(
        agent, fused.step, trajectory_length=trajectory_length, device=device
    )
    return FusedCycle(functions, fused, clock=WallClock())


def random_actions(environment: Environment, count: int) -> list[np.ndarray]:
    """Sample `count` batches of actions, `[B, ...]` each."""
    space = gymnasium.vector.utils.batch_space(environment.spec.action_space, environment.num_envs)
    space.seed(0)
    dtype = environment.spec.action_space.dtype
    return [np.asarray(space.sample(), dtype) for _ in range(count)]


def step_alone(environment: Environment, num_rows: int) -> Callable[[], int]:
    """Return work: a reset environment, stepped with random actions."""
    actions = random_actions(environment, num_rows)

    def run() -> int:
        for action in actions:
            environment.step(action)
        return num_rows * environment.num_envs

    return run


def scan_alone(environment: Environment, num_rows: int, num_scans: int = 1) -> Callable[[], int]:
    """Return work: a reset fusible environment, stepped in jitted scans."""
    fused = environment.fused()
    assert fused is not None
    actions = jnp.asarray(np.stack(random_actions(environment, num_rows)))

    @jax.jit
    def scan(state: PyTree, actions: jax.Array) -> tuple[PyTree, EnvStep]:
        def step(state: PyTree, action: jax.Array) -> tuple[PyTree, EnvStep]:
            return fused.step(state, action)

        state, rows = jax.lax.scan(step, state, actions)
        return state, rows

    state = fused.state

    def run() -> int:
        nonlocal state
        for _ in range(num_scans):
            state, rows = scan(state, actions)
            jax.block_until_ready(rows)
        return num_scans * num_rows * environment.num_envs

    return run


def infer_alone(
    agent: Agent, networks: Networks, env_step: EnvStep, num_rows: int
) -> Callable[[], int]:
    """Return work: a jitted act for each vector step, its action copied to the host."""
    num_envs = env_step.reward.shape[0]
    act = jax.jit(_act(agent), donate_argnums=1)
    state = _initial_state(agent, networks, num_envs)

    def run() -> int:
        nonlocal state
        for _ in range(num_rows):
            action, _, state = act(networks, state, env_step)
            jax.tree.map(np.asarray, action)
        return num_rows * num_envs

    return run


def infer_in_scan(
    agent: Agent, networks: Networks, env_step: EnvStep, num_rows: int, num_scans: int = 1
) -> Callable[[], int]:
    """Return work: acting on `num_rows` given rows in jitted scans."""
    num_envs = env_step.reward.shape[0]
    # Passed as an argument: XLA would hoist the work on a constant row out of the loop.
    rows = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * num_rows), env_step)
    state = _initial_state(agent, networks, num_envs)

    @jax.jit
    def scan(networks: Networks, state: PyTree, rows: EnvStep) -> tuple[PyTree, PyTree]:
        def step(state: PyTree, row: EnvStep) -> tuple[PyTree, PyTree]:
            action, extras, state = _act(agent)(networks, state, row)
            return state, (action, extras)

        return jax.lax.scan(step, state, rows)

    def run() -> int:
        nonlocal state
        for _ in range(num_scans):
            state, chosen = scan(networks, state, rows)
            jax.block_until_ready(chosen)
        return num_scans * num_rows * num_envs

    return run


def loop_alone(
    agent: Agent,
    networks: Networks,
    environment: Environment,
    env_step: EnvStep,
    num_rows: int,
    num_loops: int = 1,
) -> Callable[[], int]:
    """Return work: environment and inference in one jitted loop that stores no rows.

    Args:
        agent: the agent that acts.
        networks: its networks, on the device.
        environment: a reset fusible environment.
        env_step: the row that the reset returned.
        num_rows: env steps per loop.
        num_loops: number of jitted calls.
    """
    fused = environment.fused()
    assert fused is not None
    state = _initial_state(agent, networks, environment.num_envs)

    @jax.jit
    def loop(networks: Networks, looped: PyTree) -> PyTree:
        def step(_: jax.Array, looped: PyTree) -> PyTree:
            state, row, env_state, total = looped
            action, _, state = _act(agent)(networks, state, row)
            env_state, row = fused.step(env_state, action)
            # XLA would remove the inference if the environment ignores actions.
            total += sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(action))
            return state, row, env_state, total

        return jax.lax.fori_loop(0, num_rows, step, looped)

    looped = (state, jax.tree.map(jnp.asarray, env_step), fused.state, jnp.float32(0))

    def run() -> int:
        nonlocal looped
        for _ in range(num_loops):
            looped = jax.block_until_ready(loop(networks, looped))
        return num_loops * num_rows * environment.num_envs

    return run


def _act(agent: Agent) -> Callable[[Networks, PyTree, EnvStep], tuple[PyTree, PyTree, PyTree]]:
    return lambda networks, state, row: agent.act(networks, state, row, greedy=False)


def _initial_state(agent: Agent, networks: Networks, num_envs: int) -> PyTree:
    return jax.jit(lambda networks, key: agent.init_actor_state(networks, num_envs, key, 0))(
        networks, jax.random.key(0)
    )
