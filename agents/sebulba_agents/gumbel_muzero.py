"""Gumbel MuZero: search with a learned model, in acting and in learning.

MuZero (Schrittwieser et al. 2020, arXiv 1911.08265) with the search of Danihelka et al. 2022,
"Policy improvement by planning with Gumbel" (openreview bERaNdoegnO), and with reanalysis
(Schrittwieser et al. 2021, arXiv 2104.06294). Needs the extra `search`, which installs mctx.

Acting searches from every observation and stores the improved policy and its value. Learning draws
sequences from a replay, unrolls the model over their actions, and fits its rewards, values and
policies to the sequence's rewards, n-step returns and improved policies. A share of the batch gets
new policies and values from newer networks first.

Unlike in the papers, a value that targets bootstrap from is that of the improved policy instead of
the mean over simulations (see `planning`), and final observations of truncated episodes are
bootstrapped from.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Metrics
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit import replay
from sebulba.toolkit.normalization import clip_rewards
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.replay import ReplayState, Row, Sample
from sebulba.toolkit.schedules import at_clock
from sebulba.toolkit.spaces import zeros
from sebulba.types import Array, Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.muzero_networks import (
    LearnedModel,
    MuZeroNetwork,
    Prediction,
    check_muzero,
    scale_gradient,
)
from sebulba_agents.planning import Plan, SearchSettings, plan
from sebulba_agents.q_learning import num_discrete_actions
from sebulba_agents.replay_config import GumbelMuZeroConfig
from sebulba_agents.target_networks import (
    TargetNetworkAgent,
    TargetNetworks,
    with_copy,
)
from sebulba_agents.two_hot import TwoHot
from sebulba_agents.unroll_targets import UnrollTargets, unroll_targets


@pytree_dataclass
class Planned:
    """What acting stores of a row's search."""

    policy: Array  # [B, A] probabilities of the improved policy
    value: Array  # [B], of the improved policy


class GumbelMuZero(TargetNetworkAgent):
    """MuZero on replay, with the search of mctx."""

    _config: GumbelMuZeroConfig

    def __init__(self, config: GumbelMuZeroConfig, run_spec: RunSpec):
        """Build networks, search, replay and optimizer.

        Raises:
            ConfigError: the settings or the environment do not suit the agent.
        """
        check_muzero(config, run_spec)
        rows_per_update = config.batch_size * config.unroll_length
        super().__init__(
            config, run_spec, replay.replay_ratio(config, run_spec, rows_per_update=rows_per_update)
        )
        self._num_actions = num_discrete_actions(run_spec, "gumbel_muzero")
        self.model = LearnedModel(
            network=MuZeroNetwork(
                num_actions=self._num_actions,
                config=config,
                torso=config.torso_for(run_spec.environment),
            ),
            value=TwoHot(limit=config.value_limit, num_bins=config.num_bins),
            reward=TwoHot(limit=config.reward_limit, num_bins=config.num_bins),
            discount=config.discount,
        )
        self._search = SearchSettings(
            num_simulations=config.num_simulations,
            max_considered_actions=config.max_considered_actions,
            least_range=config.least_value_range,
        )
        self._frame_stack = replay.frame_stack(
            config.frame_stack, config.frame_stack_fill, run_spec
        )
        self._replay_spec = replay.replay_spec(
            config,
            run_spec,
            sequence_length=config.unroll_length + config.n_step,
            stride=1,
            stack=self._frame_stack,
            priority_exponent=config.priority_exponent,
        )
        self._batch_size = config.batch_size // run_spec.num_learner_devices
        self._num_reanalysed = num_reanalysed(config, run_spec)

    def init_networks(self, key: jax.Array) -> TargetNetworks:
        """Return the parameters, and their copy if there are target networks."""
        online = self.model.network.init(key, zeros(self._run_spec.environment.observation, 1))
        return with_copy(online) if self._has_target else TargetNetworks(online=online, target=None)

    def init_experience(self, networks: TargetNetworks, num_envs: int) -> ReplayState:
        """Return an empty replay of this device's environments."""
        del networks
        planned = Planned(
            policy=jax.ShapeDtypeStruct((self._num_actions,), jnp.float32),
            value=jax.ShapeDtypeStruct((), jnp.float32),
        )
        row = replay.row_shapes(self._run_spec, self._frame_stack, planned)
        return replay.init(dataclasses.replace(self._replay_spec, num_envs=num_envs), row, ())

    def init_actor_state(
        self, networks: PyTree, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> jax.Array:
        """Return the key."""
        del networks, num_envs, global_actor_id
        return key

    def act(
        self, networks: PyTree, actor_state: jax.Array, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, Planned, jax.Array]:
        """Search, with Gumbel noise at the root unless `greedy`."""
        key, plan_key = jax.random.split(actor_state)
        planned = self._plan(networks, plan_key, env_step, gumbel_scale=0.0 if greedy else 1.0)
        extras = Planned(policy=planned.policy, value=planned.value)
        return planned.action, extras, key

    def shard_actor_state(self, actor_state: jax.Array, sharding: ActorStateSharding) -> jax.Array:
        """Replicate the key."""
        return sharding.replicate(actor_state)

    def update_experience(
        self,
        networks: TargetNetworks,
        experience: ReplayState,
        initial_state: jax.Array,
        final_state: jax.Array,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> ReplayState:
        """Add the rows, and set the priorities of completed sequences from the actor's values.

        Sequences do not begin in the final row of an episode.

        Raises:
            ConfigError: frame_stack is set, but a lost life ends episodes without clearing stacks.
        """
        del networks, initial_state, final_state
        spec = self._replay_spec
        rows = replay.rows_of(trajectory, self._frame_stack, trajectory.extras)
        experience = replay.add(spec, experience, rows, (), actor_id)
        ids = replay.newest(spec, experience, actor_id)
        rows = replay.read(spec, experience, ids).rows
        rows = jax.tree.map(lambda x: x[spec.num_context_rows :], rows)
        # The random actions behind an episode's end have no part in a priority.
        targets = self._targets(jax.random.key(0), rows, rows.extras)
        error = jnp.abs(rows.extras.value[0] - targets.value[0]) + replay.MIN_PRIORITY
        priority = jnp.where(targets.policy_mask[0], error, 0.0)
        return replay.update_priorities(spec, experience, ids, priority)

    def loss(
        self, networks: TargetNetworks, experience: ReplayState, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[ReplayState, Metrics]]:
        """Return the loss of a batch from the replay, and the replay with new priorities."""
        spec = self._replay_spec
        sample_key, plan_key, action_key = jax.random.split(key, 3)
        sample = replay.sample(spec, experience, sample_key, self._batch_size)
        rows = replay.as_seen(sample.sequences.rows, self._frame_stack)
        planned = self._reanalyse(networks, plan_key, rows)
        targets = self._targets(action_key, rows, planned)
        weights = self._weights(sample, clock)
        first = jax.tree.map(lambda x: x[0], rows.env_step.observation)
        loss, error, metrics = self.loss_of_batch(networks.online, first, targets, weights)
        if spec.priority_exponent:
            experience = replay.update_priorities(
                spec, experience, sample.ids, error + replay.MIN_PRIORITY
            )
        metrics |= self._replay_ratio.metrics(experience, clock.step, sample.num_sequences)
        return loss, (experience, metrics)

    def loss_of_batch(
        self, params: PyTree, observation: PyTree, targets: UnrollTargets, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array, Metrics]:
        """Return the loss `[]`, errors of the first values `[n]`, and metrics.

        The mean over the batch of all learner devices of the weighted cross-entropies of rewards,
        values and policies, those of the unrolled steps divided by K (appendix G of MuZero).

        Args:
            params: differentiated.
            observation: `[n, ...]`, of the first rows.
            targets: targets of sequences `[K + 1, n]`.
            weights: `[n]`, importance weights.
        """
        model, share = self.model, 1.0 / self._config.unroll_length

        def advance(latent: PyTree, action: jax.Array):
            latent, reward = model.advance(params, scale_gradient(latent, 0.5), action)
            return latent, (reward, model.predict(params, latent))

        latent = model.represent(params, observation)
        first = model.predict(params, latent)
        _, (reward, later) = jax.lax.scan(advance, latent, targets.action)

        def cross_entropies(prediction: Prediction, value: jax.Array, policy: jax.Array):
            log_probs = jax.nn.log_softmax(prediction.policy)
            of_value = model.value.cross_entropy(prediction.value, value)
            return of_value, -jnp.sum(policy * log_probs, axis=-1)

        # Not of all steps at once: XLA's compiler for GPUs fails at the softmax of a concatenation
        # (jaxlib 0.10.2).
        of_first = cross_entropies(first, targets.value[0], targets.policy[0])
        of_later = cross_entropies(later, targets.value[1:], targets.policy[1:])
        value_loss, policy_loss = (
            jnp.concatenate([x[None], y]) for x, y in zip(of_first, of_later, strict=True)
        )
        per_step = jnp.full(targets.value.shape, share).at[0].set(1.0)
        losses = {
            "reward_loss": (model.reward.cross_entropy(reward, targets.reward), per_step[1:]),
            "value_loss": (value_loss, per_step),
            "policy_loss": (policy_loss, per_step),
        }
        masks = (targets.reward_mask, targets.value_mask, targets.policy_mask)
        every = jnp.ones_like(weights, bool)
        means = {
            name: mean_share(weights * jnp.sum(jnp.where(mask, each * scale, 0.0), axis=0), every)
            for (name, (each, scale)), mask in zip(losses.items(), masks, strict=True)
        }
        value = model.value.decode(first.value)
        metrics = means | {
            "value": mean_share(value, targets.value_mask[0]),
            "value_target": mean_share(targets.value[0], targets.value_mask[0]),
            "importance_weight": mean_share(weights, every),
        }
        cost = self._config.value_cost
        loss = means["reward_loss"] + cost * means["value_loss"] + means["policy_loss"]
        return loss, jnp.abs(jax.lax.stop_gradient(value) - targets.value[0]), metrics

    @property
    def _has_target(self) -> bool:
        config = self._config
        return config.reanalyse_fraction > 0.0 and config.reanalyse_with == "target"

    def _weights(self, sample: Sample, clock: Clock) -> jax.Array:
        if not self._replay_spec.priority_exponent:
            return replay.uniform_weights(sample.probability, sample.num_sequences)
        config = at_clock(self._config, clock, self._run_spec)
        # Not over their maximum: with β = 1 that leaves next to nothing of many batches.
        return replay.importance_weights(
            sample.probability, sample.num_sequences, config.importance_exponent
        )

    def _plan(
        self, params: PyTree, key: jax.Array, env_step: EnvStep, *, gumbel_scale: float = 1.0
    ) -> Plan:
        return plan(
            self.model,
            params,
            key,
            env_step.observation,
            settings=self._search,
            action_mask=env_step.action_mask,
            gumbel_scale=gumbel_scale,
        )

    def _reanalyse(self, networks: TargetNetworks, key: jax.Array, rows: Row) -> Planned:
        """Return policies and values of rows `[K + n_step + 1, n]`, some of them planned again."""
        stored = rows.extras
        count = self._num_reanalysed
        if not count:
            return stored
        params = networks.target if self._has_target else networks.online
        some = jax.tree.map(lambda x: x[:, :count], rows.env_step)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), some)
        planned = self._plan(jax.lax.stop_gradient(params), key, flat)
        fresh = Planned(policy=planned.policy, value=planned.value)
        return jax.tree.map(
            lambda new, old: jnp.concatenate(
                [new.reshape(*old.shape[:1], count, *old.shape[2:]), old[:, count:]], axis=1
            ),
            fresh,
            stored,
        )

    def _targets(self, key: jax.Array, rows: Row, planned: Planned) -> UnrollTargets:
        # Also in the values: a search adds the model's rewards, which are clipped, to values.
        reward = clip_rewards(rows.env_step.reward, self._config.reward_limit)
        return unroll_targets(
            key,
            dataclasses.replace(rows.env_step, reward=reward),
            action=rows.action,
            policy=planned.policy[: self._config.unroll_length + 1],
            values=planned.value,
            discount=self._config.discount,
            n_step=self._config.n_step,
        )


def num_reanalysed(config: GumbelMuZeroConfig, run_spec: RunSpec) -> int:
    """Return the number of sequences of a learner device's batch that get new targets.

    Raises:
        ConfigError: the number in the batch of all learner devices cannot be divided equally.
    """
    num_devices = run_spec.num_learner_devices
    total = round(config.reanalyse_fraction * config.batch_size)
    if config.reanalyse_fraction > 0.0 and (total == 0 or total % num_devices):
        lower = total - total % num_devices
        nearest = [x / config.batch_size for x in (lower, lower + num_devices) if x]
        raise ConfigError(
            f"agent.reanalyse_fraction: expected a share of the {config.batch_size} sequences in"
            f" agent.batch_size that is a multiple of the {num_devices} learner devices"
            f" (devices.learner), got {config.reanalyse_fraction}, which is {total} sequences. Set"
            f" {' or '.join(map(str, nearest))}"
        )
    return total // num_devices
