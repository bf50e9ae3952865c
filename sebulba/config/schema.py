"""The configuration schema: one frozen dataclass per section. Imports no jax.

The docstring of a field is its line in `--help` and in the configuration reference.
"""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment."""

    suite: str = "envpool"
    """Environment adapter: envpool, ale, gymnasium, gymnax, jax, jumanji, pgx, or
    module:function."""
    id: str = "CartPole-v1"
    """Environment ID within the suite."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the suite's constructor, passed on unchanged."""
    wrappers: tuple[Any, ...] = ()
    """Wrappers around each environment, the innermost first: module:Name, or {module:Name:
    {argument: value}}; see docs/tutorials/wrappers.md."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicesConfig:
    """Devices for acting and for learning, as positions in `jax.local_devices()`.

    `devices: auto` or `--devices auto` sets both to null.
    """

    actor: tuple[int, ...] | Literal["cpu"] | None = None
    """Actor devices; null: the first device; cpu: the host's processor, while all accelerators
    learn. Then no env step waits for a transfer."""
    learner: tuple[int, ...] | None = None
    """Learner devices; null: every device except the first, or the only device."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """The actor threads."""

    threads_per_device: int = 2
    """Actor threads per actor device, each with its own environments."""
    num_envs: int = 16
    """Environments per actor thread."""
    trajectory_length: int = 20
    """Env steps per environment in one act cycle."""
    rollout: Literal["steps", "episodes"] = "steps"
    """steps: trajectories of a fixed length; episodes: one complete episode per environment,
    truncated after trajectory_length − 1 env steps and masked after its end."""
    cycle: Literal["auto", "fused", "stepped"] = "auto"
    """fused: the jitted act cycle contains the environment; stepped: one jitted call per env step;
    auto: fused if the environment supports it."""
    on_env_error: Literal["fail", "restart"] = "fail"
    """What to do when an environment fails: end the run, or recreate the actor's environments."""
    max_env_restarts: int = 3
    """With on_env_error restart: maximum number of restarts per actor and run."""
    env_timeout_s: float | None = 60.0
    """Timeout per env step or fused act cycle, in seconds; the latter may also wait for an update;
    null: no limit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The learner thread."""

    trajectories_per_cycle: int = 1
    """Trajectories per learner cycle."""
    policy_lag: int | None = None
    """Age of the acting networks, in learner cycles, exact and repeatable; 0: lock-step; 1: acting
    and learning overlap; null: the newest networks, free-running."""
    queue_slots_per_actor: int | None = None
    """Capacity of the trajectory deque, in trajectories per actor thread; null: as many as
    policy_lag needs."""
    mapping: Literal["shard_map", "pmap"] = "shard_map"
    """JAX function that maps the update over the learner devices; the results are equal."""
    gradients: Literal["float32", "bfloat16"] = "float32"
    """Type of the numbers in which gradients are averaged over the learner devices of all hosts;
    bfloat16 halves the bytes that accelerators send, and rounds gradients to 3 digits."""
    cycle: Literal["auto", "one_program", "update_by_update"] = "auto"
    """one_program: all updates of a learner cycle are one jitted call; update_by_update: one call
    each; auto: update_by_update only for convolutions on a CPU, which are slow inside a loop."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """What to do after an update with a non-finite loss or gradient, which is always discarded."""
    max_non_finite_updates: int = 10
    """With on_non_finite skip: end the run after this many consecutive non-finite updates."""
    update_timeout_s: float | None = 600.0
    """Timeout for the updates of a learner cycle, other hosts included, and for each inference and
    transfer of an actor, which may wait for them, in seconds; null: no limit."""
    allow_uncorrected_lag: bool = False
    """Allow a policy_lag other than 0 with an agent that does not correct for it, such as A2C."""

    @property
    def non_finite_limit(self) -> int:
        """Consecutive non-finite updates that end the run."""
        return 1 if self.on_non_finite == "stop" else self.max_non_finite_updates


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """The learner cycles that a profiler trace covers."""

    from_cycle: int = 10
    """First learner cycle of the trace, from 0; the first ones compile."""
    cycles: int = 3
    """Number of learner cycles."""

    def __post_init__(self):
        if self.from_cycle < 0:
            raise ValueError(f"from_cycle: expected at least 0, got {self.from_cycle}")
        if self.cycles < 1:
            raise ValueError(f"cycles: expected at least 1, got {self.cycles}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Length, mode and outputs of the run."""

    total_env_steps: int = 500_000
    """Number of env steps to learn from; the run ends after the learner cycle that reaches it."""
    mode: Literal["threads", "serial", "anakin", "auto"] = "threads"
    """threads: actors and learner run concurrently; serial: they take turns in one thread,
    without any timeout, for a debugger; anakin: they are one jitted program, for JAX environments
    in lock-step; auto: anakin where it is possible and does not slow down, else threads."""
    compile_timeout_s: float | None = 1800.0
    """Timeout for the first call of each program, which compiles it, in seconds; null: no limit."""
    close_timeout_s: float = 10.0
    """Timeout for closing the environments at the end of the run, in seconds."""
    stop_at_return: float | None = None
    """Mean return over return_window episodes at which the run ends early; null: never."""
    return_window: int = 100
    """Number of recent episodes averaged for the mean return."""
    log_interval_env_steps: int = 10_000
    """Interval between rows of metrics, in env steps."""
    episode_reducers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Custom per-episode metrics, {name: module:Name}; see sebulba.ring.episodes."""
    wandb_project: str | None = None
    """Weights & Biases project to log metrics to (pip install 'sebulba[wandb]'); null: none."""
    profile: ProfileConfig | None = None
    """Learner cycles to record with JAX's profiler, as {from_cycle: 10, cycles: 3}, into profile/
    of the run directory; null: none."""
    keep_memory: bool = False
    """Keep freed host memory in the process (Linux, glibc). On a CPU, this makes convolutions up to
    twice as fast, and may make small networks slower."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints, from which a run can be resumed."""

    interval_s: float | None = 300.0
    """Interval between checkpoints, in seconds; null: only one, at the end of the run."""
    keep: int = 3
    """Number of recent checkpoints to keep, plus the one with the best mean return."""
    exact_reset_cycles: int | None = None
    """Recreate environments every N act cycles and save checkpoints only then, for an exact resume;
    null: never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation of the policy, during training and by `sebulba.evaluate`."""

    interval_env_steps: int | None = None
    """Interval between evaluations during training, in env steps; one more runs at the end; null:
    none."""
    episodes: int = 20
    """Episodes per evaluation, divided evenly over its environments."""
    parallel_envs: int = 8
    """Environments per evaluation, stepped together."""
    max_episode_steps: int = 30_000
    """Step budget per episode, pooled per environment; guarantees that an evaluation ends."""
    greedy: bool = True
    """true: act by the mode of the policy; false: sample actions, as in training."""
    video: Literal["gif", "mp4"] | None = None
    """Format of a video of the first episode of each evaluation during training, at most 1,000
    frames, in videos/ of the run directory; null: none. TensorBoard shows gif only."""
    stop_on_error: bool = False
    """true: a failed evaluation ends the run; false: warn and retry after the interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """The processes of the run, one per host. `distributed: off` or `auto` sets the mode."""

    mode: Literal["off", "auto", "manual"] | None = None
    """auto: read JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or detect Slurm,
    Open MPI, Kubernetes or a TPU pod; manual: use coordinator, num_processes and process_id; null:
    manual if coordinator is set, else off."""
    coordinator: str | None = None
    """Address of process 0, host:port; manual only."""
    num_processes: int | None = None
    """Number of processes of the run; manual only."""
    process_id: int | None = None
    """Number of this process, from 0; manual only."""
    local_devices: tuple[int, ...] | None = None
    """GPUs of this process, as positions among the visible ones; null: every visible GPU."""
    join_timeout_s: float = 60.0
    """Timeout for all processes to join at the start, in seconds."""
    heartbeat_timeout_s: int = 30
    """Heartbeat timeout, in seconds, after which a silent process counts as dead."""

    @property
    def effective_mode(self) -> Literal["off", "auto", "manual"]:
        """Return `mode`, or the mode that null stands for."""
        if self.mode is not None:
            return self.mode
        return "off" if self.coordinator is None else "manual"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A complete run. `agent` is the settings dataclass of the agent `agent.name`."""

    env: EnvConfig = EnvConfig()
    devices: DevicesConfig = DevicesConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    run: RunConfig = RunConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    distributed: DistributedConfig = DistributedConfig()
    agent: Any = None
    seed: int = 0
    """Seed of the networks, actors and environments."""
    run_dir: str | None = None
    """Directory of the results; null: runs/<agent>-<environment>-<date and time>."""
    init_from: str | None = None
    """Run whose networks and normalisers a new run starts with: RUN_DIR, RUN_DIR@best,
    RUN_DIR@latest or RUN_DIR@CYCLE; null: newly initialised networks."""
    init_mismatch: Literal["fail", "new"] = "fail"
    """What to do with arrays of the networks that differ from those of init_from by name, shape or
    dtype: fail, or leave them newly initialised."""
    resume: str | None = None
    """Checkpoint in run_dir to resume from: latest, best, or the number of its learner cycle; null:
    start a new run."""
