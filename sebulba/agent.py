"""The `Agent` protocol: an algorithm as pure functions. Imports no jax, since settings do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    import jax

    from sebulba.task import Task
    from sebulba.types import ActorState, Clock, EnvStep, Experience, Networks, PyTree, Trajectory

Metrics: TypeAlias = "dict[str, jax.Array]"


class AgentSettings(Protocol):
    """The frozen dataclass of an agent's settings. Inherit it for the default declaration."""

    name: str
    """The agent's name in the config."""

    corrects_for_policy_lag: ClassVar[bool] = True
    """Whether the loss can learn from what older networks did: it corrects for that, or learns
    action values. False: `learner.policy_lag` must be 0 unless `learner.allow_uncorrected_lag` is
    set."""
    default_policy_lag: ClassVar[int] = 1
    """What `learner.policy_lag: auto` is for an agent that corrects for it. 1: acting and learning
    overlap. 0: that would cost too many env steps."""

    @classmethod
    def defaults_for(cls, task: Task) -> dict[str, Any]:
        """Return the defaults that suit a task, by dotted key of any section but `env`.

        They replace the schema's defaults at the start of a run, such as
        `{"agent.discount": 0.9, "actor.trajectory_length": 128}`. A value that the config or a flag
        gives is kept.

        Args:
            task: what the environment's observations and actions are, and the length of the run.
        """
        return {}


class ActorStateSharding(Protocol):
    """Places an actor's arrays on the learner devices."""

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        """Split every leaf's environment axis evenly over the learner devices."""
        ...

    def replicate(self, tree: PyTree) -> PyTree:
        """Copy every leaf to every learner device."""
        ...


class Agent(Protocol):
    """An algorithm, batched over environments; built as `Name(config, run_spec)`.

    All methods except `num_updates_per_cycle` and `shard_actor_state` are pure, and the framework
    jits them. An agent holds no thread, device, collective or axis name: its loss reduces over all
    learner devices with `sebulba.toolkit.reductions`. PRNG keys are consumed by the callee.

    Inherit it for the defaults: `learns_from_final_observations`, `mixes_players`,
    `policy_observation`, `advance_actor_state` and `copy_to_targets` are optional. An object that
    has the other methods is an agent, whether it inherits or not.
    """

    learns_from_final_observations: bool = False
    """Whether the loss depends on next observations, because it rewards or predicts them, or
    normalises a batch that contains them. If False, `sebulba.check` reports a dependence on
    terminal observations as wrong bootstrapping."""

    mixes_players: bool = False
    """Whether a player's actions, or what is learned from them, depend on the rows of the other
    players of its environment. If False, `sebulba.check` reports such a dependence."""

    def init_networks(self, key: jax.Array) -> Networks:
        """Return the parameters, and target parameters and normalisation statistics if any.

        They are real or complex numbers, since gradients are taken; counters belong in the
        optimizer state.
        """
        ...

    def policy_observation(self, observation: PyTree) -> PyTree:
        """Return the part of an observation that actions depend on.

        For an agent whose value function sees more than its policy. Whoever loads or exports the
        policy gives it this part, so `act` has to take it as well as a complete observation. The
        default returns the observation as it is.

        Args:
            observation: an environment's, of arrays or of their shapes.
        """
        return observation

    def copy_to_targets(self, networks: Networks) -> Networks:
        """Return the networks with target networks that equal those they follow.

        A run that starts with another run's networks calls it, and keeps the result where the other
        run has no target networks. The default returns the networks as they are.
        """
        return networks

    def init_opt_state(self, networks: Networks) -> PyTree:
        """Return the initial state of the optimizer, and counters if any."""
        ...

    def init_experience(self, networks: Networks, num_envs: int) -> Experience:
        """Return one learner device's experience before its first trajectory.

        Args:
            networks: the result of `init_networks`.
            num_envs: environments of one trajectory on one learner device.
        """
        ...

    def init_actor_state(
        self, networks: Networks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> ActorState:
        """Return an actor's initial state, such as recurrent state, exploration rates and a key.

        Every per-environment leaf has `num_envs` as its leading axis.

        Args:
            networks: the result of `actor_networks`.
            num_envs: environments of this actor.
            key: different for every actor.
            global_actor_id: the actor's number among those of all hosts. Environment `b` of the
                actor is number `global_actor_id · num_envs + b` of
                `run_spec.num_streams_of_all_hosts`, for a schedule of ε over environments.
        """
        ...

    def advance_actor_state(self, actor_state: ActorState, env_steps: int) -> ActorState:
        """Return the actor state with its counts of env steps set to those of a run.

        For an agent whose actors count what they have done, such as for a schedule of ε. It is
        called for new actors of a run that is resumed on other hosts, and before the first row of
        an evaluation that samples actions, which keeps what it sets. The default returns the actor
        state as it is.

        Args:
            actor_state: a new one, or one that has acted.
            env_steps: the env steps that the run has taken on all hosts.
        """
        return actor_state

    def act(
        self, networks: Networks, actor_state: ActorState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[PyTree, PyTree, ActorState]:
        """Select actions from one row.

        Where `env_step.is_first`, recurrent state, last action and last reward are zeroed before
        the observation is used.

        Args:
            networks: the result of `actor_networks`.
            actor_state: before this row.
            env_step: `[B, ...]`, the row.
            greedy: take the policy's mode instead of a sample, for evaluation.

        Returns:
            Actions `[B, ...]`, extras `[B, ...]` (any pytree; stored in the trajectory), and the
            actor state after this row.
        """
        ...

    def shard_actor_state(
        self, actor_state: ActorState, sharding: ActorStateSharding
    ) -> ActorState:
        """Place an actor state on the learner devices: split per-environment leaves, copy others.

        `sebulba.toolkit.sharding.shard_per_env_leaves` is the common case in one line.
        """
        ...

    def update_experience(
        self,
        networks: Networks,
        experience: Experience,
        initial_state: ActorState,
        final_state: ActorState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Experience:
        """Add this learner device's share of one trajectory.

        Called once per trajectory, in order. All calls of a learner cycle precede its first `loss`
        and get the same networks.

        Args:
            networks: the learner's, before this cycle's optimisation steps.
            experience: this learner device's.
            initial_state: the actor state before row 0.
            final_state: the actor state after row `T - 1`.
            trajectory: `[T + 1, B]` rows; `B` is this device's share of the environments.
            actor_id: int32 `[]`, 0 … `run_spec.num_actors` − 1, the actor's number on this host.
                An actor's trajectories arrive in the order in which they were collected, so
                `(actor_id, b)` names a stream without gaps.
        """
        ...

    def loss(
        self, networks: Networks, experience: Experience, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Return the loss of one optimisation step on this learner device's share.

        Args:
            networks: differentiated.
            experience: this learner device's.
            key: different on every learner device and at every step.
            clock: the number of this step, and the env steps learned from before its cycle.

        Returns:
            The scalar loss, the experience (with new priorities, for example), and scalar metrics.
            The framework averages loss and metrics over the learner devices, and metrics over the
            updates of a cycle too.
        """
        ...

    def optimize(
        self,
        networks: Networks,
        opt_state: PyTree,
        grads: Networks,
        experience: Experience,
        clock: Clock,
    ) -> tuple[Networks, PyTree]:
        """Return the networks, including target networks, and optimizer state after one step.

        The result must be the same on every learner device. Whatever depends on the experience,
        such as normalisation statistics, must therefore be reduced over all of them, like a loss.

        Args:
            networks: before the step.
            opt_state: before the step.
            grads: averaged over all learner devices of all hosts.
            experience: this learner device's, as returned by `loss`.
            clock: the one that `loss` got.
        """
        ...

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return the number of optimisation steps of learner cycle `cycle` (0, 1, 2 …).

        It is a Python int that depends on `cycle` only, so that the ratio of learning to acting
        never depends on timing: 1 for IMPALA, epochs × minibatches for PPO, the replay ratio's
        share for replay agents, 0 while a replay buffer fills.
        """
        ...

    def actor_networks(self, networks: Networks) -> Networks:
        """Return the part of the networks that `act` needs: all that actors receive."""
        ...


def declared(subject: Any, protocol: type, name: str) -> Any:
    """Return an attribute or a method that has a default in a protocol, or that default.

    An object may have the methods of an agent without inheriting `Agent`. So this function reads
    all such attributes, and nothing else does.

    Args:
        subject: an agent, or an agent's settings.
        protocol: `Agent` or `AgentSettings`.
        name: the attribute's name.
    """
    default = getattr(protocol, name)
    return getattr(subject, name, default.__get__(subject) if callable(default) else default)
