"""Unsupervised skills: DIAYN (Eysenbach et al. 2018, arXiv 1802.06070) on A2C.

Each episode draws a skill z uniformly, which the policy observes. A discriminator q(z | s) infers
the skill from states, and arriving in s is rewarded with log q(z | s) − log p(z), so that skills
visit distinguishable states. The paper is based on SAC; this agent is `ActorCriticAgent` with A2C's
loss.

The skill is a leaf `[B]` of the actor state that is redrawn where `is_first` and stored in the
extras. Goals, tasks and exploration rates per environment can be implemented in the same way.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.dense import Dense
from sebulba.toolkit.distributions import Categorical, one_hot
from sebulba.toolkit.optimizers import clipped_adam, descend
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.schedules import at_clock
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import MLPTorso, ObservationTorso, check_network, fold_time
from sebulba.toolkit.window import Window
from sebulba.types import Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.a2c import a2c_loss
from sebulba_agents.actor_critic import (
    ActorCriticAgent,
    ActorCriticExtras,
    ActorCriticNetworks,
    ActorCriticOptState,
    ActorCriticState,
)
from sebulba_agents.config import A2CConfig, SkillsConfig


@pytree_dataclass
class SkillsNetworks:
    """The parameters."""

    actor_critic: ActorCriticNetworks
    discriminator: PyTree


@pytree_dataclass
class SkillsState:
    """The actor state."""

    actor_critic: ActorCriticState
    skill: jax.Array  # [B] int32, the current episode's
    key: jax.Array


@pytree_dataclass
class SkillsExtras:
    """What the learner needs to know about each action."""

    actor_critic: ActorCriticExtras
    skill: jax.Array  # [B] int32


@pytree_dataclass
class SkillsOptState:
    """The optimizers' states."""

    actor_critic: ActorCriticOptState
    discriminator: PyTree


class SkillTorso(nn.Module):
    """The network that the config names, and tanh layers that also see the skill."""

    torso: TorsoSettings

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return `[N, hidden_sizes[-1]]` of observations `[N, ...]` with their skills."""
        torso = ObservationTorso(self.torso, name="torso")
        features = torso(observation["observation"])
        return _tanh_layers(self.torso, name="mlp")((features, observation["skill"]))


class Discriminator(nn.Module):
    """Infers the skill from an observation."""

    num_skills: int
    torso: TorsoSettings

    @nn.compact
    def __call__(self, observation: PyTree) -> Categorical:
        """Return q(z | s) `[N]` of observations `[N, ...]`."""
        torso = ObservationTorso(self.torso, name="torso")
        features = _tanh_layers(self.torso)(torso(observation))
        return Categorical(logits=Dense(self.num_skills)(features))


def _tanh_layers(torso: TorsoSettings, name: str | None = None) -> MLPTorso:
    return MLPTorso(torso.hidden_sizes, dtype=jnp.dtype(torso.compute_dtype), name=name)


class SkillsAgent(Agent):
    """An actor-critic that observes a skill, and a discriminator that rewards it."""

    learns_from_final_observations = True

    def __init__(self, config: SkillsConfig, run_spec: RunSpec):
        """Build the actor-critic for observations that include the skill.

        Raises:
            ConfigError: the settings or the environment do not suit the agent.
        """
        torso = config.torso_for(run_spec.environment)
        check_network(torso, run_spec.environment.observation)
        self._config = config
        self._run_spec = run_spec
        observation = {
            "observation": run_spec.environment.observation,
            "skill": jax.ShapeDtypeStruct((config.num_skills,), np.float32),
        }
        # The discrete leaves are those of the torso, which sees the environment's part alone.
        environment = dataclasses.replace(
            run_spec.environment, observation=observation, choices=None
        )
        a2c = A2CConfig(
            name=config.name,
            network="mlp",  # so that policy and value have a `SkillTorso` each
            hidden_sizes=config.hidden_sizes,
            compute_dtype=config.compute_dtype,
            discount=config.discount,
            lambda_=config.lambda_,
            baseline_cost=config.baseline_cost,
            entropy_cost=config.entropy_cost,
            learning_rate=config.learning_rate,
            adam_epsilon=config.adam_epsilon,
            max_grad_norm=config.max_grad_norm,
        )
        self._actor_critic = ActorCriticAgent(
            a2c,
            dataclasses.replace(run_spec, environment=environment),
            loss=a2c_loss,
            torso=functools.partial(SkillTorso, torso),
        )
        self._discriminator = Discriminator(config.num_skills, torso)
        self._optimizer = clipped_adam(epsilon=config.adam_epsilon, max_grad_norm=None)

    def init_networks(self, key: jax.Array) -> SkillsNetworks:
        """Return the parameters."""
        key, discriminator_key = jax.random.split(key)
        observation = zeros(self._run_spec.environment.observation, 1)
        return SkillsNetworks(
            actor_critic=self._actor_critic.init_networks(key),
            discriminator=self._discriminator.init(discriminator_key, observation),
        )

    def init_opt_state(self, networks: SkillsNetworks) -> SkillsOptState:
        """Return the optimizers' states."""
        return SkillsOptState(
            actor_critic=self._actor_critic.init_opt_state(networks.actor_critic),
            discriminator=self._optimizer.init(networks.discriminator),
        )

    def init_experience(self, networks: SkillsNetworks, num_envs: int) -> Window:
        """Return the actor-critic's empty window."""
        return self._actor_critic.init_experience(networks.actor_critic, num_envs)

    def init_actor_state(
        self, networks: SkillsNetworks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> SkillsState:
        """Return an empty memory, and placeholder skills that the first row redraws."""
        key, actor_critic_key = jax.random.split(key)
        return SkillsState(
            actor_critic=self._actor_critic.init_actor_state(
                networks.actor_critic, num_envs, actor_critic_key, global_actor_id
            ),
            skill=jnp.zeros(num_envs, jnp.int32),
            key=key,
        )

    def act(
        self,
        networks: SkillsNetworks,
        actor_state: SkillsState,
        env_step: EnvStep,
        *,
        greedy: bool,
    ) -> tuple[jax.Array, SkillsExtras, SkillsState]:
        """Draw a skill where an episode begins, and act with it."""
        key, skill_key = jax.random.split(actor_state.key)
        drawn = jax.random.randint(
            skill_key, actor_state.skill.shape, 0, self._config.num_skills, jnp.int32
        )
        skill = jnp.where(env_step.is_first, drawn, actor_state.skill)
        action, extras, state = self._actor_critic.act(
            networks.actor_critic,
            actor_state.actor_critic,
            self._with_skill(env_step, skill),
            greedy=greedy,
        )
        return (
            action,
            SkillsExtras(actor_critic=extras, skill=skill),
            SkillsState(actor_critic=state, skill=skill, key=key),
        )

    def shard_actor_state(
        self, actor_state: SkillsState, sharding: ActorStateSharding
    ) -> SkillsState:
        """Split memory and skills over the learner devices."""
        return SkillsState(
            actor_critic=self._actor_critic.shard_actor_state(actor_state.actor_critic, sharding),
            skill=sharding.split(actor_state.skill),
            key=sharding.replicate(actor_state.key),
        )

    def update_experience(
        self,
        networks: SkillsNetworks,
        experience: Window,
        initial_state: SkillsState,
        final_state: SkillsState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Window:
        """Add the trajectory with the discriminator's rewards to the window."""
        skill = trajectory.extras.skill
        env_steps = trajectory.env_steps
        posterior = self._discriminate(networks.discriminator, env_steps.observation)
        # A transition has the skill of the row it leaves. No transition arrives at row 0.
        log_q = posterior.log_prob(jnp.concatenate([skill[:1], skill]))
        skill_reward = log_q + jnp.log(float(self._config.num_skills))
        reward = self._config.reward_weight * env_steps.reward + skill_reward
        # Row T has row T - 1's skill, or begins an episode and no valid transition leads there.
        shown = jnp.concatenate([skill, skill[-1:]])
        env_steps = self._with_skill(dataclasses.replace(env_steps, reward=reward), shown)
        return self._actor_critic.update_experience(
            networks.actor_critic,
            experience,
            initial_state.actor_critic,
            final_state.actor_critic,
            Trajectory(
                env_steps=env_steps,
                action=trajectory.action,
                extras=trajectory.extras.actor_critic,
            ),
            actor_id,
        )

    def loss(
        self, networks: SkillsNetworks, experience: Window, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Return A2C's loss and the discriminator's cross-entropy, over the rows arrived at."""
        loss, (experience, metrics) = self._actor_critic.loss(
            networks.actor_critic, experience, key, clock
        )
        valid = experience.trajectory.valid
        rows = experience.trajectory.env_steps.observation
        skill = jnp.argmax(rows["skill"][:-1], axis=-1)
        arrived_at = jax.tree.map(lambda leaf: leaf[1:], rows["observation"])
        posterior = self._discriminate(networks.discriminator, arrived_at)
        cross_entropy = mean_share(-posterior.log_prob(skill), valid)
        is_right = (posterior.mode() == skill).astype(jnp.float32)
        metrics |= {
            "discriminator_loss": cross_entropy,
            "discriminator_accuracy": mean_share(is_right, valid),
        }
        return loss + cross_entropy, (experience, metrics)

    def optimize(
        self,
        networks: SkillsNetworks,
        opt_state: SkillsOptState,
        grads: SkillsNetworks,
        experience: Window,
        clock: Clock,
    ) -> tuple[SkillsNetworks, SkillsOptState]:
        """Take a step of each optimizer."""
        actor_critic, actor_critic_state = self._actor_critic.optimize(
            networks.actor_critic, opt_state.actor_critic, grads.actor_critic, experience, clock
        )
        config = at_clock(self._config, clock, self._run_spec)
        discriminator, discriminator_state = descend(
            self._optimizer,
            networks.discriminator,
            opt_state.discriminator,
            grads.discriminator,
            learning_rate=config.discriminator_learning_rate,
        )
        return (
            SkillsNetworks(actor_critic=actor_critic, discriminator=discriminator),
            SkillsOptState(actor_critic=actor_critic_state, discriminator=discriminator_state),
        )

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return the actor-critic's number of updates."""
        return self._actor_critic.num_updates_per_cycle(cycle)

    def actor_networks(self, networks: SkillsNetworks) -> SkillsNetworks:
        """Return all networks."""
        return networks

    def _with_skill(self, env_step: EnvStep, skill: jax.Array) -> EnvStep:
        """Return rows `[..., B]` whose observations include the skill."""
        encoded = one_hot(skill, self._config.num_skills)
        observation = {"observation": env_step.observation, "skill": encoded}
        return dataclasses.replace(env_step, observation=observation)

    def _discriminate(self, params: PyTree, observation: PyTree) -> Categorical:
        """Return q(z | s) `[R, B]` of observations `[R, B, ...]`."""
        return Categorical(
            logits=fold_time(lambda x: self._discriminator.apply(params, x).logits, observation)
        )
