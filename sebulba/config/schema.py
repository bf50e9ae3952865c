"""The configuration schema: one frozen dataclass a section. Imports no jax.

Each field's docstring is its line in `--help` and in the configuration reference.
"""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment."""

    suite: str = "envpool"
    """Adapter: envpool, ale, gymnasium, gymnax, jax, or module:function."""
    id: str = "CartPole-v1"
    """The suite's name of the environment."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Passed to the suite's constructor as they are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicesConfig:
    """Which devices act and which learn, by position in `jax.local_devices()`; or `devices: auto`.

    `auto`, also as `--devices auto`, is null for both.
    """

    actor: tuple[int, ...] | None = None
    """Devices that act; null: the only device, or the first of several."""
    learner: tuple[int, ...] | None = None
    """Devices that learn; null: the only device, or all of several but the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """The actor threads."""

    threads_per_device: int = 2
    """Actor threads on each actor device, each with its own environments."""
    num_envs: int = 16
    """Environments of one actor thread."""
    trajectory_length: int = 20
    """Env steps of each environment in one act cycle."""
    rollout: Literal["steps", "episodes"] = "steps"
    """episodes: one whole episode of each environment a trajectory, of up to trajectory_length − 1
    env steps; a longer one is truncated there, a shorter one is masked from its end on."""
    cycle: Literal["auto", "fused", "stepped"] = "auto"
    """fused: the environment inside the jitted cycle; stepped: one jitted call an env step."""
    on_env_error: Literal["fail", "restart"] = "fail"
    """When an environment fails: end the run, or make the actor's environments anew and go on."""
    max_env_restarts: int = 3
    """Restarts of an actor's environments in the whole run, if on_env_error is restart."""
    env_timeout_s: float | None = 60.0
    """Seconds for an env step, or a fused cycle, before the watchdog ends the run; null: any."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The learner thread."""

    trajectories_per_cycle: int = 1
    """Trajectories taken from the deque in each learner cycle."""
    max_policy_lag: int | None = None
    """Most learner cycles between acting and learning; 0: lock-step; null: free-running."""
    queue_slots_per_actor: int = 1
    """Trajectories that may wait in the deque for each actor thread."""
    mapping: Literal["shard_map", "pmap"] = "shard_map"
    """How the update is mapped over the learner devices; the numbers are the same."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """After an update whose loss or gradients are not finite, which is never applied."""
    max_non_finite_updates: int = 10
    """With skip: so many of them in a row end the run all the same."""
    update_timeout_s: float | None = 600.0
    """Seconds for the updates of a cycle, and for the other hosts to take part in them, before the
    watchdog ends the run; null: any; compilation has all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long, and in which mode."""

    total_env_steps: int = 500_000
    """The run ends after the learner cycle in which this many env steps have been learned from."""
    mode: Literal["threads", "serial"] = "threads"
    """threads: actors and learner side by side; serial: the same functions in one thread."""
    stop_at_return: float | None = None
    """End early once the mean return of the return window has reached this."""
    return_window: int = 100
    """Finished episodes in the running mean return."""
    log_interval_env_steps: int = 10_000
    """Env steps between two rows of metrics."""
    record_schedule: bool = False
    """Write schedule.jsonl: what each learner cycle took, and which networks acted it."""
    replay_schedule: str | None = None
    """A recorded schedule.jsonl to repeat: a free-running run comes out bitwise the same."""
    episode_reducers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Numbers of every episode, {name: module:Name}; see sebulba.acting.episode_reducers."""
    wandb_project: str | None = None
    """Weights & Biases project that gets every row too (pip install 'sebulba[wandb]')."""
    keep_memory: bool = False
    """Keep freed host memory instead of giving it back: convolutions on a CPU are up to twice as
    fast, small networks may be slower (Linux, glibc)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What a run can be resumed from."""

    interval_s: float | None = 300.0
    """Seconds between two checkpoints; there is one at the end too; null: only that one."""
    keep: int = 3
    """The newest checkpoints that stay; the one of the best mean return stays besides."""
    exact_reset_cycles: int | None = None
    """Make environments anew every so many actor cycles, and save at those only: exact resume."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a policy is measured, beside training and after it."""

    interval_env_steps: int | None = None
    """Env steps between two evaluations beside training, and one at the end; null: none."""
    episodes: int = 20
    """Episodes of an evaluation, divided evenly over its environments."""
    parallel_envs: int = 8
    """Environments of an evaluation, stepped together."""
    max_episode_steps: int = 30_000
    """Env steps that an environment is given for each of its episodes, so that it always ends."""
    greedy: bool = True
    """Act by the mode of the policy; false: by samples, as in training."""
    stop_on_error: bool = False
    """End the run when an evaluation fails; false: warn, and try again after the interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """The processes of the run, one on each host; or `distributed: off` or `auto`, for the mode."""

    mode: Literal["off", "auto", "manual"] | None = None
    """auto: as Slurm, Open MPI, Kubernetes or a TPU pod says; manual: as the next three say; null:
    manual where there is a coordinator, off where there is none."""
    coordinator: str | None = None
    """Where process 0 listens, host:port; manual only."""
    num_processes: int | None = None
    """Processes of the run; manual only."""
    process_id: int | None = None
    """This process among them, from 0; manual only."""
    local_devices: tuple[int, ...] | None = None
    """GPUs of this process, of those it sees; null: all of them."""
    heartbeat_timeout_s: int = 30
    """Seconds of silence after which a process counts as dead, and the others end."""

    @property
    def effective_mode(self) -> Literal["off", "auto", "manual"]:
        """The mode, said or meant."""
        if self.mode is not None:
            return self.mode
        return "off" if self.coordinator is None else "manual"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. `agent` is the settings dataclass of the agent that `agent.name` names."""

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
    """Seeds the networks, every actor's key and every environment."""
    run_dir: str | None = None
    """Where results go; null: runs/<agent>-<environment>-<date and time>."""
    resume: str | None = None
    """Go on in run_dir from a checkpoint: latest, best, or the number of its learner cycle."""
