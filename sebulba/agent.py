"""The `Agent` protocol: everything an algorithm has to say, as pure functions."""

from typing import Protocol

import jax

from sebulba.types import ActorState, EnvStep, Experience, Networks, PyTree, Trajectory

Metrics = dict[str, jax.Array]


class ActorStateSharding(Protocol):
    """Places an actor's arrays on the learner devices."""

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        """Splits every leaf's environment axis evenly over the learner devices."""
        ...

    def replicate(self, tree: PyTree) -> PyTree:
        """Gives every learner device the whole of every leaf."""
        ...


class Agent(Protocol):
    """An algorithm, batched over environments; built as `Name(config, run_spec)`.

    All methods but `num_updates_per_cycle` and `shard_actor_state` are pure and are jitted by the
    framework. No agent holds a thread, a device, a collective or the name of an axis: a loss counts
    over all learner devices by using `masked_mean`, `masked_sum`, `masked_moments` and
    `masked_max` of `sebulba.toolkit.reductions`. Keys are consumed by the callee.

    An agent that pays for the observations it arrives at, or predicts them, has an attribute
    `learns_from_final_observations = True`: its loss may look at one that terminates an episode,
    where `sebulba.check` otherwise takes that for bootstrapping.
    """

    def init_networks(self, key: jax.Array) -> Networks:
        """Returns the parameters (and target parameters, normalisers)."""
        ...

    def init_opt_state(self, networks: Networks) -> PyTree:
        """Returns the optimizer's state and counters."""
        ...

    def init_experience(self, networks: Networks, num_envs: int) -> Experience:
        """Returns one learner device's experience before any trajectory has come.

        Args:
            networks: as `init_networks` gives them.
            num_envs: environments of one trajectory on one learner device.
        """
        ...

    def init_actor_state(
        self, networks: Networks, num_envs: int, key: jax.Array, actor_id: int
    ) -> ActorState:
        """Returns recurrent state, per-environment exploration, key.

        Every leaf that is per environment has `num_envs` leading.

        Args:
            networks: as `actor_networks` gives them.
            num_envs: environments of this actor.
            key: this actor's own.
            actor_id: counted over all hosts; environment `b` of the actor is number
                `actor_id · num_envs + b` of `run_spec.num_envs_of_all_hosts` (an exploration ladder
                counts over all).
        """
        ...

    def act(
        self, networks: Networks, actor_state: ActorState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[PyTree, PyTree, ActorState]:
        """Chooses from one row.

        Recurrent state, previous action and previous reward are zeroed where `env_step.is_first`
        before the observation is consumed.

        Args:
            networks: as `actor_networks` gives them.
            actor_state: the state before this row.
            env_step: `[B, ...]`, the row.
            greedy: for evaluation: the mode of the policy instead of a sample.

        Returns:
            `action` `[B, ...]`, `extras` `[B, ...]` (stored in the trajectory; any pytree), and the
            actor state after this row.
        """
        ...

    def shard_actor_state(
        self, actor_state: ActorState, sharding: ActorStateSharding
    ) -> ActorState:
        """Places an actor state on the learner devices.

        Per-environment leaves are split, the others replicated;
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
        """Takes one trajectory's share in; called once for each trajectory, in order.

        All calls of a learner cycle come before its first `loss`, with the same networks.

        Args:
            networks: the learner's, before this cycle's optimisation steps.
            experience: this learner device's.
            initial_state: the actor state before row 0.
            final_state: the actor state after row `T - 1`.
            trajectory: `[T + 1, B]` rows, `B` being this device's share of the environments.
            actor_id: int32 `[]`, 0 … `run_spec.num_actors` − 1 on each host. An actor's
                trajectories come in the order in which they were acted, so `(actor_id, b)` names a
                stream without gaps.
        """
        ...

    def loss(
        self, networks: Networks, experience: Experience, key: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Returns one optimisation step's loss on this learner device's share.

        Args:
            networks: differentiated.
            experience: this learner device's.
            key: different on every learner device and at every step.
            step: int32 `[]`, optimisation steps taken so far.

        Returns:
            The scalar loss, the experience (new priorities, say), and metrics: scalars, which the
            framework averages over learner devices and updates.
        """
        ...

    def optimize(
        self, networks: Networks, opt_state: PyTree, grads: Networks, experience: Experience
    ) -> tuple[Networks, PyTree]:
        """Returns new networks and optimizer state; target networks are updated here too.

        The result has to be the same on every learner device. What of it comes from the experience,
        such as the moments that observations are normalised with, is therefore reduced over all of
        them, as a loss is.

        Args:
            networks: before the step.
            opt_state: before the step.
            grads: averaged over all learner devices of all hosts.
            experience: this learner device's, as `loss` gave it.
        """
        ...

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Returns how many optimisation steps learner cycle `cycle` (0, 1, 2 …) takes.

        A plain Python number that depends on nothing but `cycle`, so that the ratio of learning to
        acting never depends on timing: 1 for IMPALA, epochs × minibatches for PPO, from the replay
        ratio for replay agents, 0 while a replay buffer fills.
        """
        ...

    def actor_networks(self, networks: Networks) -> Networks:
        """Returns what is sent to the actors: only what `act` needs."""
        ...
