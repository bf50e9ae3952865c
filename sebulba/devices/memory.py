"""The memory that a run needs, from shapes alone, before any is allocated."""

import dataclasses
import math
import os
from collections.abc import Sequence

import jax

from sebulba.agent_check import ActShapes, env_step_shapes
from sebulba.errors import ConfigError
from sebulba.toolkit.frame_stack import older_frames, with_older_frames, with_single_frames
from sebulba.toolkit.settings import NetworkConfig
from sebulba.types import EnvironmentSpec, EnvStep, FrameStack, PyTree, RunSpec, Trajectory

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""In the message of XLA's error."""
_DENSE = ("mlp", "relu_mlp", "flat")
# What to make smaller, by the part of the plan.
_REMEDIES = {
    "experience": "the agent's replay capacity or batch",
    "trajectories": "actor.num_envs, actor.trajectory_length or learner.queue_slots_per_actor",
    "networks and gradients": "the network",
    "optimizer": "the network",
    "staged networks": "the network",
    "trajectory buffers": "actor.num_envs or actor.trajectory_length",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes on each device, by purpose; activations of acting and of the update excluded."""

    learner_device: dict[str, int]
    actor_device: dict[str, int]
    checkpoint: int  # in host memory, for each learner device: the copy that is being saved

    def describe(self) -> str:
        """Return the plan in a line: `learner device 1.2 GiB (experience 1.1 GiB, …); …`."""
        devices = "; ".join(
            f"{role} {format_bytes(sum(parts.values()))} ("
            + ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
            + ")"
            for role, parts in (
                ("learner device", self.learner_device),
                ("actor device", self.actor_device),
            )
        )
        checkpoint = format_bytes(self.checkpoint)
        return f"{devices}; to save a checkpoint {checkpoint} of host memory per learner device"


def plan_memory(
    run_spec: RunSpec,
    shapes: ActShapes,
    *,
    opt_state: PyTree,
    experience: PyTree,
    num_actor_devices: int,
    queue_slots_per_actor: int,
    policy_lag: int | None = None,
    frame_stack: FrameStack | None = None,
) -> MemoryPlan:
    """Return the bytes that a run needs on each device.

    Args:
        run_spec: the run's counts.
        shapes: of acting.
        opt_state: its shapes.
        experience: shapes of all learner devices' experience, with a leading axis of devices.
        num_actor_devices: of this host.
        queue_slots_per_actor: places of the trajectory deque.
        policy_lag: `learner.policy_lag`.
        frame_stack: how observations stack the frames that trajectories hold once; None: they hold
            the observations.
    """
    networks, actor_networks = num_bytes(shapes.networks), num_bytes(shapes.actor_networks)
    num_learner_devices = run_spec.num_learner_devices * run_spec.num_hosts
    experience_of_device = num_bytes(experience) // num_learner_devices
    trajectory = num_bytes(trajectory_shapes(run_spec, shapes, frame_stack))
    # Those in the deque, one per actor in `put`, and those of the current learner cycle.
    trajectories = run_spec.num_actors * (queue_slots_per_actor + 1)
    trajectories += run_spec.trajectories_per_cycle
    threads = run_spec.num_actors // num_actor_devices
    return MemoryPlan(
        learner_device={
            "experience": experience_of_device,
            "trajectories": trajectories * trajectory // run_spec.num_learner_devices,
            "networks and gradients": 2 * networks + actor_networks,
            "optimizer": num_bytes(opt_state),
        },
        actor_device={
            # The staged versions, and the one that replaces the oldest of them.
            "staged networks": (2 + (policy_lag or 0)) * actor_networks,
            "trajectory buffers": threads * trajectory,
        },
        checkpoint=networks + num_bytes(opt_state) + experience_of_device,
    )


def trajectory_shapes(
    run_spec: RunSpec, shapes: ActShapes, frame_stack: FrameStack | None = None
) -> Trajectory:
    """Return the shapes of one actor's trajectory."""
    length, row = run_spec.trajectory_length, env_step_shapes(run_spec)
    if frame_stack is None:
        return stack_rows(row, shapes.action, shapes.extras, length=length)
    single = jax.eval_shape(lambda row: with_single_frames(row, frame_stack), row)
    older = jax.eval_shape(lambda x: older_frames(x, frame_stack), row.observation)
    trajectory = stack_rows(single, shapes.action, shapes.extras, length=length)
    return with_older_frames(trajectory, older)


def stack_rows(env_step: EnvStep, action: PyTree, extras: PyTree, *, length: int) -> Trajectory:
    """Return the shapes of a trajectory of `length` steps from the shapes of one row."""

    def rows(count: int, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), tree)

    return Trajectory(
        env_steps=rows(length + 1, env_step),
        action=rows(length, action),
        extras=rows(length, extras),
    )


def check_memory(
    plan: MemoryPlan,
    *,
    actor_devices: Sequence[jax.Device],
    learner_devices: Sequence[jax.Device],
    num_seeds: int = 1,
) -> None:
    """Check that every device, and the host, has enough memory for its part of the plan.

    Args:
        plan: what a run needs.
        actor_devices: act.
        learner_devices: learn.
        num_seeds: runs that are one program.

    Raises:
        ConfigError: one has too little.
    """
    needs: dict[str, int] = {}
    capacities: dict[str, int] = {}
    for place, size in (
        *((device, sum(plan.actor_device.values())) for device in actor_devices),
        *((device, sum(plan.learner_device.values())) for device in learner_devices),
        (None, plan.checkpoint * len(learner_devices)),
    ):
        name, capacity = _memory_of(place)
        needs[name] = needs.get(name, 0) + num_seeds * size
        capacities[name] = capacity
    for name, need in needs.items():
        if need > capacities[name]:
            parts = plan.learner_device | plan.actor_device
            largest = max(parts, key=parts.__getitem__)
            runs = "the run needs" if num_seeds == 1 else f"{num_seeds} seeds as one program need"
            of_each = "" if num_seeds == 1 else "of each seed, "
            remedy = _REMEDIES[largest] if num_seeds == 1 else "the seeds, or set run.seeds in_turn"
            raise ConfigError(
                f"memory: {runs} {format_bytes(need)} on {name}, which has"
                f" {format_bytes(capacities[name])}: {of_each}{plan.describe()}. Reduce {remedy}"
            )


def describe_full_memory(error: BaseException | None) -> str | None:
    """Return what needs less memory, if an error or one of its causes is a device's full memory."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) and OUT_OF_MEMORY in str(error):
            return (
                "The device has too little memory: reduce actor.num_envs, actor.trajectory_length,"
                " agent.batch_size or agent.replay_capacity, increase agent.num_minibatches, or"
                " choose a smaller network; --verbose shows what takes how much. If other processes"
                " use the device, set XLA_PYTHON_CLIENT_MEM_FRACTION for each."
            )
        error = error.__cause__
    return None


def num_bytes(tree: PyTree) -> int:
    """Return the bytes of all leaves, which are arrays or their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def format_bytes(size: int) -> str:
    """Return a size as text, such as `1.5 GiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def _memory_of(device: jax.Device | None) -> tuple[str, int]:
    """Return the name and the size of a device's memory; CPU devices and None: of the host's."""
    stats = (device and device.memory_stats()) or {}
    if "bytes_limit" in stats:
        return str(device), stats["bytes_limit"]
    return "the host", size_of_host()


def size_of_host() -> int:
    """Return the bytes of the host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe_costly_network(
    settings: object, spec: EnvironmentSpec, networks: PyTree
) -> str | None:
    """Return a warning about dense layers on images that the user asked for; None: no reason.

    Args:
        settings: the agent's.
        spec: the environment's.
        networks: the learner's.
    """
    images = [leaf for leaf in spec.observation_leaves if leaf.is_image and not leaf.is_small_image]
    if not isinstance(settings, NetworkConfig) or settings.network not in _DENSE or not images:
        return None
    return (
        f"warning: agent.network {settings.network} flattens images of {images[0].shape}: networks"
        f" of {format_bytes(num_bytes(networks))}. Convolutions suit images: agent.network shallow"
    )
