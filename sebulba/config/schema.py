"""The configuration schema: one frozen dataclass per section. Imports no jax.

The type of a field says its range, and its docstring is its line in `--help` and in the
configuration reference.
"""

import dataclasses
import typing
from typing import Annotated, Any, Literal

from sebulba.agent import AgentSettings, declared
from sebulba.ranges import Count, Natural, NonNegative, Positive, Range, Real

Seconds = Annotated[float, Range(1)]
Seed = Annotated[int, Range(0, 2**31 - 1)]  # EnvPool's seeds are int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment."""

    suite: str = "envpool"
    """Environment adapter: envpool, ale, craftax, dm_env, gymnasium, gymnax, jax, jaxmarl, jumanji,
    pettingzoo, pgx, playground, or module:function."""
    id: str = "CartPole-v1"
    """Environment ID within the suite."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the suite's constructor, passed unchanged. The flag --env.options.NAME sets a
    single one."""
    wrappers: tuple[Any, ...] = ()
    """Wrappers of every environment, innermost first: module:Name, or {module:Name: {argument:
    value}}. See docs/tutorials/wrappers.md."""
    groups: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Players with networks of their own, by the name of their group, as in {wolves: [0, 1], sheep:
    [2]}. Players count from 0, and each is in one group. Empty: all players share networks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicesConfig:
    """Devices for acting and for learning, as positions in `jax.local_devices()`.

    `devices: auto` or `--devices auto` sets both to null.
    """

    actor: tuple[Natural, ...] | Literal["cpu"] | None = None
    """Devices that act. null: the first device. cpu: act on the host's CPU and learn on every
    accelerator, so that no env step waits for a transfer."""
    learner: tuple[Natural, ...] | None = None
    """Devices that learn. null: the only device, or of those after the first as many as divide
    actor.num_envs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """The actor threads."""

    threads_per_device: Natural = 2
    """Actor threads per actor device, each with its own environments. 0: all actors are remote."""
    num_envs: Count = 16
    """Environments per actor thread. Each player of an environment is a row of the batch."""
    trajectory_length: Count = 20
    """Env steps per environment, and player of it, in one act cycle."""
    rollout: Literal["steps", "episodes"] = "steps"
    """steps: trajectories of a fixed length. episodes: one complete episode per environment,
    truncated after trajectory_length − 1 env steps and masked after its end."""
    cycle: Literal["auto", "fused", "stepped"] = "auto"
    """fused: the jitted act cycle contains the environment. stepped: one jitted call per env step.
    auto: fused if the environment supports it; on accelerators, only JAX environments are fused."""
    on_env_error: Literal["fail", "restart"] = "fail"
    """What to do when an environment fails: end the run, or recreate the actor's environments."""
    max_env_restarts: Count = 3
    """Maximum number of restarts per actor and run, with on_env_error: restart."""
    env_timeout_s: Seconds | None = 60.0
    """Timeout of an env step or a fused act cycle, in seconds. A fused act cycle may also wait for
    an update. null: no limit."""
    remote: Natural = 0
    """Further actors, each in a process that Ray starts: on the cluster of RAY_ADDRESS, or on this
    machine. They may die at any moment. A free-running run begins without those that have no
    machine, which join it when there is one."""
    remote_cpus: Count = 1
    """CPUs of a remote actor."""
    remote_gpus: NonNegative = 0.0
    """GPUs of a remote actor, which may be a share of one. 0: it acts on its CPUs."""
    remote_timeout_s: Seconds | None = 60.0
    """Timeout of an act cycle of a remote actor, with its start if it died, in seconds. Without a
    limit if null, and in a free-running run, where the others continue."""
    remote_max_replay: Natural = 10_000
    """Act cycles that a remote actor repeats at most when another has died, to return to the state
    of environments that cannot be stored. After longer streams, new episodes begin."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The learner thread."""

    trajectories_per_cycle: Count = 1
    """Trajectories per learner cycle."""
    policy_lag: Natural | Literal["auto"] | None = "auto"
    """Exact age of the acting networks, in learner cycles; makes the run repeatable. 0: lock-step.
    1: acting and learning overlap. auto: 1, or 0 for ppo, an agent that does not correct for a
    lag, and run.mode anakin. null: act with the newest networks, free-running."""
    queue_slots_per_actor: Count | None = None
    """Capacity of the trajectory deque, in trajectories per actor thread. null: what policy_lag
    needs."""
    mapping: Literal["shard_map", "pmap"] = "shard_map"
    """JAX function that maps the update over the learner devices. Both give equal results."""
    gradients: Literal["float32", "bfloat16"] = "float32"
    """Type in which gradients are averaged over the learner devices of all hosts. bfloat16 halves
    the bytes that accelerators send, and rounds gradients to 3 digits."""
    cycle: Literal["auto", "one_program", "update_by_update"] = "auto"
    """one_program: one jitted call for all updates of a learner cycle. update_by_update: one call
    per update. auto: update_by_update for convolutions on a CPU, which are slow inside a loop."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """What to do after an update with a non-finite loss or gradient, which is always discarded."""
    max_non_finite_updates: Count = 10
    """End the run after this many consecutive non-finite updates, with on_non_finite: skip."""
    update_timeout_s: Seconds | None = 600.0
    """Timeout of the updates of a learner cycle, including those of other hosts, in seconds. Also
    of an actor's inferences and transfers, which may wait for an update. null: no limit."""
    allow_uncorrected_lag: bool = False
    """Allow a policy_lag other than 0 for an agent that does not correct for it, such as A2C."""

    @property
    def non_finite_limit(self) -> int:
        """Return the number of consecutive non-finite updates that ends the run."""
        return 1 if self.on_non_finite == "stop" else self.max_non_finite_updates


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """The learner cycles that a profiler trace covers."""

    from_cycle: Natural = 10
    """First learner cycle of the trace. Learner cycles count from 0, and the first ones compile."""
    cycles: Count = 3
    """Number of learner cycles in the trace."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Length, mode and outputs of the run."""

    total_env_steps: Count = 500_000
    """Number of env steps to learn from. The run ends after the learner cycle that reaches it."""
    total_episodes: Count | None = None
    """End the run after the learner cycle by which this many episodes have finished, on all hosts;
    schedules still follow total_env_steps. null: no limit."""
    total_learner_cycles: Count | None = None
    """End the run after this many learner cycles; schedules still follow total_env_steps. null: no
    limit."""
    mode: Literal["threads", "serial", "anakin", "auto"] = "threads"
    """threads: actors and learner run concurrently. serial: they take turns in one thread without
    timeouts, for a debugger. anakin: they are one jitted program, for JAX environments and
    an exact policy_lag. auto: anakin where it is possible and not slower, else threads."""
    seeds: Literal["auto", "in_turn", "mapped"] = "auto"
    """How the runs of `--seeds` are trained. in_turn: one after another. mapped: as one program,
    with run.mode anakin, whose bits are not those of runs in turn. auto: mapped on a GPU or TPU
    with run.mode anakin, else in_turn."""
    compile_timeout_s: Seconds | None = 1800.0
    """Timeout of the start of the command, of the first call of a program, which compiles it, and
    of recreating an actor's environments, in seconds. null: no limit."""
    close_timeout_s: Positive = 10.0
    """Timeout of closing environments, those of an evaluation included, in seconds."""
    repeatable: Literal["auto", "strict", "off"] = "auto"
    """Kernels of NVIDIA GPUs that compute the same bits in every run. auto: with an exact
    policy_lag, else the fastest kernels. strict: the same, and an error where that is impossible.
    off: always the fastest kernels. Without effect on a CPU or TPU."""
    stop_at_return: Real | None = None
    """End the run when the mean return over return_window episodes reaches this. null: never."""
    return_window: Count = 100
    """Number of recent episodes averaged for the mean return."""
    log_interval_env_steps: Count = 10_000
    """Interval between rows of metrics, in env steps."""
    episode_reducers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Custom per-episode metrics, {name: module:Name}. See "Custom metrics per episode" in
    docs/write_an_agent.md."""
    wandb_project: str | None = None
    """Weights & Biases project that gets the metrics (pip install 'sebulba[wandb]'). null: none."""
    profile: ProfileConfig | None = None
    """Learner cycles that JAX's profiler records into profile/ of the run directory, as
    {from_cycle: 10, cycles: 3}. null: none."""
    checksums: bool = True
    """Write checksums of networks, optimizer state and trajectories after some learner cycles:
    `sebulba verify` repeats the run, and `sebulba diff` says where two runs part."""
    keep_memory: bool = False
    """Keep freed host memory in the process (Linux, glibc). On a CPU this makes convolutions up to
    twice as fast, and may make small networks slower. Without effect if no CPU acts or learns."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints, from which a run can be resumed."""

    interval_s: NonNegative | None = 300.0
    """Interval between checkpoints, in seconds. The first is saved after at most 30 s. null: save
    only at the end of the run."""
    keep: Count = 3
    """Number of recent checkpoints to keep, plus the one with the best mean return."""
    exact_reset_cycles: Count | None = None
    """Recreate environments every N act cycles and save checkpoints only then, for an exact resume.
    null: never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation of the policy, during training and by `sebulba.evaluate`."""

    interval_env_steps: Count | None = None
    """Interval between evaluations during training, in env steps. One more follows at the end.
    null: no evaluation."""
    episodes: Count = 20
    """Episodes per evaluation, divided evenly over the environments."""
    parallel_envs: Count = 8
    """Environments per evaluation, stepped together."""
    max_episode_steps: Count = 30_000
    """Step budget per episode, pooled over an environment's episodes; guarantees an end."""
    greedy: bool = True
    """true: take the mode of the policy. false: sample actions, as in training."""
    video: Literal["gif", "mp4"] | None = None
    """Format of videos: the first episode of every evaluation during training, up to 1,000 frames,
    in videos/ of the run directory. TensorBoard shows only gif. null: no videos."""
    stop_on_error: bool = False
    """true: a failed evaluation ends the run. false: warn, and retry after the interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """The processes of the run, one per host. `distributed: off` or `auto` sets the mode."""

    mode: Literal["off", "auto", "manual"] | None = None
    """auto: read JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or detect Slurm,
    Open MPI, Kubernetes or a TPU pod. manual: use coordinator, num_processes and process_id. null:
    manual if coordinator is set, else off."""
    coordinator: str | None = None
    """Address of process 0, host:port. Only with mode: manual."""
    num_processes: Count | None = None
    """Number of processes of the run. Only with mode: manual."""
    process_id: Natural | None = None
    """Number of this process, from 0. Only with mode: manual."""
    local_devices: tuple[Natural, ...] | None = None
    """GPUs of this process, as positions among the visible ones. null: every visible GPU."""
    join_timeout_s: Seconds = 60.0
    """Timeout until all processes have joined at the start, in seconds."""
    heartbeat_timeout_s: Count = 30
    """A process without a heartbeat for this many seconds counts as dead."""

    @property
    def effective_mode(self) -> Literal["off", "auto", "manual"]:
        """Return `mode`, or the mode that null means."""
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
    seed: Seed = 0
    """Seed of the networks, actors and environments."""
    run_dir: str | None = None
    """Directory of the results. null: runs/<agent>-<environment>-<date and time>-<random>."""
    init_from: str | None = None
    """Run whose networks and normalisers a new run starts with: RUN_DIR, RUN_DIR@best,
    RUN_DIR@latest or RUN_DIR@CYCLE. null: newly initialised networks."""
    init_mismatch: Literal["fail", "new"] = "fail"
    """What to do with arrays of the networks that differ from those of init_from in name, shape or
    dtype. fail: end with an error. new: leave them newly initialised (missing target networks are
    copies of the online ones)."""
    resume: str | None = None
    """Checkpoint in run_dir to resume from: latest, best, or the number of its learner cycle.
    null: start a new run."""
    # No key of a file: the keys that neither a file nor flags gave, with their defaults. The task
    # may replace those defaults while they are unchanged. A config made in Python has none.
    open_defaults: dict[str, Any] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Replace `learner.policy_lag: auto` by the agent's lag, so that a run records it."""
        if self.agent is not None and self.learner.policy_lag == "auto":
            learner = dataclasses.replace(self.learner, policy_lag=self.policy_lag)
            object.__setattr__(self, "learner", learner)

    @property
    def policy_lag(self) -> int | None:
        """The exact policy lag in learner cycles; None: free-running."""
        if self.learner.policy_lag != "auto":
            return self.learner.policy_lag
        corrects = declared(self.agent, AgentSettings, "corrects_for_policy_lag")
        if not corrects or self.run.mode == "anakin":
            return 0
        return declared(self.agent, AgentSettings, "default_policy_lag")

    @property
    def has_fixed_order(self) -> bool:
        """Whether the config fixes which networks act when, and the order of trajectories."""
        return self.policy_lag is not None or self.run.mode == "serial"

    def __repr__(self) -> str:
        """Return the settings that differ from their defaults, one line each, by dotted key."""
        lines = (f"    {key}={value!r},\n" for key, value in changed_settings(self).items())
        return f"Config(\n{''.join(lines)})"


SECTIONS = tuple(
    name
    for name, annotation in typing.get_type_hints(Config).items()
    if dataclasses.is_dataclass(annotation) or name == "agent"
)
"""The keys of a config that contain further keys."""


def sections(agent_class: type) -> dict[str, type]:
    """Return the dataclass of each section; that of `agent` is `agent_class`."""
    classes = typing.get_type_hints(Config) | {"agent": agent_class}
    return {name: classes[name] for name in SECTIONS}


def key_types(agent_class: type) -> dict[str, Any]:
    """Return the declared type of every dotted key, with its range.

    Args:
        agent_class: the dataclass of the agent's settings; one that is no dataclass has no keys.
    """
    types = {}
    owners = {f"{name}.": cls for name, cls in sections(agent_class).items()} | {"": Config}
    for prefix, cls in owners.items():
        hints = typing.get_type_hints(cls, include_extras=True)  # also of class variables
        for field in key_fields(cls):
            if prefix or field.name not in SECTIONS:
                types[prefix + field.name] = hints[field.name]
    return types


def key_fields(settings: Any) -> tuple[dataclasses.Field, ...]:
    """Return the fields of a settings dataclass, or of an instance, that are keys of a config file.

    Another object has none.
    """
    if not dataclasses.is_dataclass(settings):
        return ()
    return tuple(field for field in dataclasses.fields(settings) if field.compare)


def flat_config(config: Config) -> dict[str, Any]:
    """Return the value of every dotted key; of a section that is not set, that of the section."""
    values: dict[str, Any] = {}
    for field in key_fields(config):
        name, value = field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            values |= {f"{name}.{key}": each for key, each in vars(value).items()}
        else:
            values[name] = value
    return values


def changed_settings(config: Config) -> dict[str, Any]:
    """Return environment, agent, and all values that differ from their defaults, by dotted key."""
    changed = {"env.suite": config.env.suite, "env.id": config.env.id}
    changed |= {"agent.name": config.agent.name} if hasattr(config.agent, "name") else {}
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            changed |= {f"{name}.{key}": each for key, each in changed_fields(value).items()}
    return changed | {
        name: value for name, value in changed_fields(config).items() if name not in SECTIONS
    }


def changed_fields(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance that differ from their defaults.

    Another object has none.
    """
    changed = {}
    for field in key_fields(settings):
        make, value = field.default_factory, getattr(settings, field.name)
        default = field.default if make is dataclasses.MISSING else make()
        if value != default:
            changed[field.name] = value
    return changed
