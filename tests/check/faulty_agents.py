"""Agents with one fault each: wrappers around sound agents."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit import replay
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.reductions import learner_device_index, masked_mean
from sebulba.toolkit.replay.rows import valid_transitions
from sebulba.toolkit.returns import n_step_returns
from sebulba.toolkit.sharding import shard_per_env_leaves
from tests.check.faulty_base import Faulty, FaultyConfig
from tests.check.faulty_ppo import (
    DrawsWithReplacement,
    IgnoresPenalties,
    KeepsTheMean,
    LeavesOneOut,
    NormalisesMaskedRows,
)

__all__ = [  # for `faulty`
    "DrawsWithReplacement",
    "IgnoresPenalties",
    "KeepsTheMean",
    "LeavesOneOut",
    "NormalisesMaskedRows",
]


def faulty(name, sound):
    """Return settings of the agent `name` of this module, around a sound agent."""
    return FaultyConfig(name=f"tests.check.faulty_agents:{name}", sound=sound)


def _with_trajectory(agent, change):
    """Return the sound agent's `update_experience`, with changed rows."""

    def update_experience(networks, experience, initial, final, trajectory, actor_id):
        trajectory = dataclasses.replace(trajectory, env_steps=change(trajectory.env_steps))
        return agent.sound.update_experience(
            networks, experience, initial, final, trajectory, actor_id
        )

    return update_experience


class ShiftedReward(Faulty):
    """Learns transition t with the reward of row t, not of row t + 1."""

    def update_experience(self, *args):
        def shift(env_steps):
            return dataclasses.replace(env_steps, reward=jnp.roll(env_steps.reward, 1, axis=0))

        return _with_trajectory(self, shift)(*args)


class NegatedReward(Faulty):
    """Learns to avoid rewards."""

    def update_experience(self, *args):
        def negate(env_steps):
            return dataclasses.replace(env_steps, reward=-env_steps.reward)

        return _with_trajectory(self, negate)(*args)


class _OtherCost(Faulty):
    """Has the opposite sign of a cost."""

    cost = ""

    def __init__(self, config, run_spec):
        costs = {self.cost: -getattr(config.sound, self.cost)}
        sound = dataclasses.replace(config.sound, **costs)
        super().__init__(dataclasses.replace(config, sound=sound), run_spec)


class EntropyCost(_OtherCost):
    """Lowers the entropy."""

    cost = "entropy_cost"


class ValueCost(_OtherCost):
    """Moves values away from their targets."""

    cost = "baseline_cost"


class MergedDone(Faulty):
    """Treats a truncation as a termination."""

    def update_experience(self, *args):
        def merge(env_steps):
            return dataclasses.replace(env_steps, terminated=env_steps.done)

        return _with_trajectory(self, merge)(*args)


class RewardsObservations(Faulty):
    """Without a fault: rewards every observation, final ones too, and declares it."""

    learns_from_final_observations = True

    def update_experience(self, *args):
        return _with_trajectory(self, _add_reward)(*args)


class RewardsObservationsWithoutEnd(RewardsObservations):
    """Treats a termination as a truncation, too."""

    def update_experience(self, *args):
        def truncate(env_steps):
            nowhere = jnp.zeros_like(env_steps.done)
            return dataclasses.replace(
                _add_reward(env_steps), terminated=nowhere, truncated=env_steps.done
            )

        return _with_trajectory(self, truncate)(*args)


def _add_reward(env_steps):
    bonus = jnp.mean(env_steps.observation, axis=-1)
    return dataclasses.replace(env_steps, reward=env_steps.reward + bonus)


class RoundsAtTerminations(Faulty):
    """Without a fault: its loss uses terminal observations as far as rounding goes.

    A projection of returns onto atoms does, whose probabilities add up to 1 only nearly.
    """

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks, experience, key, clock)
        rows = experience.trajectory.env_steps
        terminal = jnp.where(rows.terminated[..., None], rows.observation, 0.0)
        return loss * (1.0 + 1e-7 * terminal.sum()), aux


class DeadUnits(Faulty):
    """Without a fault: a ReLU cuts one of its leaves off, until the leaf grows."""

    def loss(self, networks, experience, key, clock):
        leaves, structure = jax.tree.flatten(networks)
        leaves[0] = jax.nn.relu(leaves[0] - 0.2)
        revived = jax.tree.unflatten(structure, leaves)
        return self.sound.loss(revived, experience, key, clock)


class StandardisesRewards(Faulty):
    """Without a fault: divides rewards by their standard deviation in the trajectory."""

    def update_experience(self, *args):
        def standardise(env_steps):
            reward = env_steps.reward / env_steps.reward.std()
            return dataclasses.replace(env_steps, reward=reward)

        return _with_trajectory(self, standardise)(*args)


class WeighsByTarget(Faulty):
    """Without a fault: its target network is of no use if the discount is 0.

    The target network weighs the loss, since IMPALA has no other use of one.
    """

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.discount = config.sound.discount

    def init_opt_state(self, networks):
        return self.sound.init_opt_state(networks["online"])

    def init_experience(self, networks, num_envs):
        return self.sound.init_experience(networks["online"], num_envs)

    def actor_networks(self, networks):
        return networks["online"]

    def update_experience(self, networks, *args):
        return self.sound.update_experience(networks["online"], *args)

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks["online"], experience, key, clock)
        target = sum(leaf.sum() for leaf in jax.tree.leaves(networks["target"]))
        return loss * (1.0 + self.discount * jax.lax.stop_gradient(target)), aux

    def optimize(self, networks, opt_state, grads, experience, clock):
        arguments = networks["online"], opt_state, grads["online"], experience, clock
        online, opt_state = self.sound.optimize(*arguments)
        return {"online": online, "target": online}, opt_state


class NeverReset(Faulty):
    """Keeps its recurrent state across episodes, both acting and learning."""

    def act(self, networks, actor_state, env_step, *, greedy):
        return self.sound.act(networks, actor_state, _never_first(env_step), greedy=greedy)

    def update_experience(self, *args):
        return _with_trajectory(self, _never_first)(*args)


class NeverResetInLearner(Faulty):
    """Resets its recurrent state while acting, but not in the loss."""

    def update_experience(self, *args):
        return _with_trajectory(self, _never_first)(*args)


def _never_first(env_step):
    return dataclasses.replace(env_step, is_first=jnp.zeros_like(env_step.is_first))


class SharedKey(Faulty):
    """Gives all actors the same key."""

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        del key
        return self.sound.init_actor_state(networks, num_envs, jax.random.key(0), global_actor_id)


class WrongAxis(Faulty):
    """Splits the recurrent state along its units, not its environments."""

    def shard_actor_state(self, actor_state, sharding):
        placed = shard_per_env_leaves(actor_state, sharding, replicated=("key",))
        core = sharding.split(actor_state.memory.core, axis=1)
        memory = dataclasses.replace(placed.memory, core=core)
        return dataclasses.replace(placed, memory=memory)


class EpsilonPerActor(Faulty):
    """Gives all environments of an actor the ε of its first one."""

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        state = self.sound.init_actor_state(networks, num_envs, key, global_actor_id)
        epsilon = jnp.full_like(state.epsilon, state.epsilon[0])
        return dataclasses.replace(state, epsilon=epsilon)


class LocalMean(Faulty):
    """Divides by the valid transitions of its own learner device."""

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks, experience, key, clock)
        return loss / jnp.mean(experience.trajectory.valid.astype(jnp.float32)), aux


class BootstrapsFromReset(Faulty):
    """Sees the reset after a truncation in place of the true final observation."""

    def update_experience(self, *args):
        def replace(env_steps):
            following = jnp.roll(env_steps.observation, -1, axis=0)
            following = following.at[-1].set(env_steps.observation[-1])
            mask = env_steps.truncated[..., None]
            observation = jnp.where(mask, following, env_steps.observation)
            return dataclasses.replace(env_steps, observation=observation)

        return _with_trajectory(self, replace)(*args)


class CurrentPolicyRatio(Faulty):
    """Compares the current policy with itself, not with the behaviour policy."""

    def loss(self, networks, experience, key, clock):
        outputs = jax.lax.stop_gradient(
            self.sound.unroll_trajectory(networks, experience.initial, experience.trajectory)
        )
        policy = jax.tree.map(lambda leaf: leaf[:-1], outputs.policy)
        return self._with_policy(networks, experience, key, clock, policy)

    def _with_policy(self, networks, experience, key, clock, policy):
        extras = dataclasses.replace(experience.trajectory.extras, policy=policy)
        trajectory = dataclasses.replace(experience.trajectory, extras=extras)
        changed = dataclasses.replace(experience, trajectory=trajectory)
        loss, (_, metrics) = self.sound.loss(networks, changed, key, clock)
        return loss, (experience, metrics)


@pytree_dataclass
class LogProbOfMode(Categorical):
    """Returns the log-probability of its mode, whatever the action is."""

    def log_prob(self, action):
        return Categorical.log_prob(self, jnp.broadcast_to(self.mode(), action.shape))


class ModeRatio(CurrentPolicyRatio):
    """Divides by the behaviour policy's probability of its mode."""

    def loss(self, networks, experience, key, clock):
        policy = LogProbOfMode(logits=experience.trajectory.extras.policy.logits)
        return self._with_policy(networks, experience, key, clock, policy)


class OptimizesOnOneDevice(Faulty):
    """Applies its step on the first learner device only."""

    def optimize(self, networks, *args):
        after, opt_state = self.sound.optimize(networks, *args)
        is_first = learner_device_index() == 0
        after = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), after, networks)
        return after, opt_state


class SameKey(Faulty):
    """Keeps its key, and so draws the same numbers at every step."""

    def act(self, networks, actor_state, env_step, *, greedy):
        action, extras, after = self.sound.act(networks, actor_state, env_step, greedy=greedy)
        return action, extras, dataclasses.replace(after, key=actor_state.key)


class IgnoresGreedy(Faulty):
    """Samples, whether greedy or not."""

    def act(self, networks, actor_state, env_step, *, greedy):
        del greedy
        return self.sound.act(networks, actor_state, env_step, greedy=False)


class IgnoresMask(Faulty):
    """Takes illegal actions, and learns as if all were legal."""

    def act(self, networks, actor_state, env_step, *, greedy):
        every = jnp.ones_like(env_step.action_mask)
        env_step = dataclasses.replace(env_step, action_mask=every)
        return self.sound.act(networks, actor_state, env_step, greedy=greedy)


class LearnsIllegalActions(Faulty):
    """Acts legally, but learns as if all actions were legal."""

    def update_experience(self, *args):
        def allow(env_steps):
            every = jnp.ones_like(env_steps.action_mask)
            return dataclasses.replace(env_steps, action_mask=every)

        return _with_trajectory(self, allow)(*args)


class PrioritiesOfOthers(Faulty):
    """Gives each sampled sequence the priority of the one before it in the batch."""

    def loss(self, networks, experience, key, clock):
        agent = self.sound
        sample = replay.sample(agent._replay_spec, experience, key, agent._batch_size)
        loss, priority, metrics = agent.loss_of_sample(networks, sample, 0.6)
        experience = replay.update_priorities(
            agent._replay_spec, experience, sample.ids, jnp.roll(priority, 1)
        )
        return loss, (experience, metrics)


class IgnoresImportance(Faulty):
    """Counts all draws alike, however likely they were."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        sound = self.sound.loss_of_batch

        def loss_of_batch(networks, batch):
            weight = (batch.weight > 0.0).astype(jnp.float32)
            return sound(networks, dataclasses.replace(batch, weight=weight))

        self.sound.loss_of_batch = loss_of_batch


class IgnoresImportanceOfSequences(Faulty):
    """Counts all drawn sequences alike."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.sound._weights = lambda sample, experience: replay.uniform_weights(
            sample.probability, sample.num_sequences
        )


class UnrollsIntoTheNextEpisode(Faulty):
    """Learns what follows a termination in place of an absorbing state; returns are right."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        sound, settings = self.sound._targets, config.sound

        def targets(key, rows, planned):
            found, steps = sound(key, rows, planned), rows.env_step
            valid = valid_transitions(steps)
            returns = n_step_returns(
                rewards=steps.reward[1:],
                discounts=settings.discount * (1.0 - steps.terminated[1:].astype(jnp.float32)),
                valid=valid,
                bootstrap_values=planned.value[1:],
                n=settings.n_step,
            )
            last = settings.unroll_length
            return dataclasses.replace(
                found,
                action=rows.action[:last],
                reward=steps.reward[1 : last + 1],
                reward_mask=valid[:last],
                value=returns[: last + 1],
                value_mask=valid[: last + 1],
                policy_mask=valid[: last + 1],
            )

        self.sound._targets = targets


class _OtherTargets(Faulty):
    """Has other targets of its critics."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self.sound.targets = self.targets

    def targets(self, networks, batch, following, *, action=None, least=jnp.min, weight=1.0):
        action = following.action if action is None else action
        q = self.sound._critics.apply(networks.target_critics, batch.next_observation, action)
        temperature = weight * jnp.exp(networks.online.log_temperature)
        value = least(q, axis=0) - temperature * following.log_prob
        return jax.lax.stop_gradient(batch.reward + batch.discount * value)


class TakesTheGreaterTwin(_OtherTargets):
    """Takes the greater of two critics."""

    def targets(self, networks, batch, following):
        return super().targets(networks, batch, following, least=jnp.max)


class TargetWithoutEntropy(_OtherTargets):
    """Leaves the entropy of the next action out."""

    def targets(self, networks, batch, following):
        return super().targets(networks, batch, following, weight=0.0)


class TargetOfStoredAction(_OtherTargets):
    """Takes the value of the stored action in the next observation."""

    def targets(self, networks, batch, following):
        return super().targets(networks, batch, following, action=batch.action)


class IgnoresStoredState(Faulty):
    """Unrolls sequences from a zero state instead of the stored one."""

    def loss(self, networks, experience, key, clock):
        nothing = jax.tree.map(jnp.zeros_like, experience.recurrent)
        changed = dataclasses.replace(experience, recurrent=nothing)
        loss, (after, metrics) = self.sound.loss(networks, changed, key, clock)
        after = dataclasses.replace(after, recurrent=experience.recurrent)
        return loss, (after, metrics)


class FrozenTarget(Faulty):
    """Never updates its target network."""

    def optimize(self, networks, *args):
        after, opt_state = self.sound.optimize(networks, *args)
        return dataclasses.replace(after, target=networks.target), opt_state


class StepsFromTarget(Faulty):
    """Adds its step to the target network."""

    def optimize(self, networks, *args):
        from_target = dataclasses.replace(networks, online=networks.target)
        return self.sound.optimize(from_target, *args)


class ActsWithTarget(Faulty):
    """Gives the actors the target network."""

    def actor_networks(self, networks):
        return networks.target


class FollowsAtOnce(Faulty):
    """Copies to the target network after every update."""

    def optimize(self, networks, *args):
        after, opt_state = self.sound.optimize(networks, *args)
        return dataclasses.replace(after, target=after.online), opt_state


class FrozenLeaf(Faulty):
    """Leaves the first leaf of its parameters out of the update."""

    def optimize(self, networks, *args):
        after, opt_state = self.sound.optimize(networks, *args)
        leaves, structure = jax.tree.flatten(after)
        leaves[0] = jax.tree.leaves(networks)[0]
        return jax.tree.unflatten(structure, leaves), opt_state


class Ascends(Faulty):
    """Adds its gradients."""

    def optimize(self, networks, opt_state, grads, experience, clock):
        grads = jax.tree.map(jnp.negative, grads)
        return self.sound.optimize(networks, opt_state, grads, experience, clock)


class UnmaskedMean(Faulty):
    """Divides by the number of all rows, not of the valid ones."""

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks, experience, key, clock)
        valid = experience.trajectory.valid
        share = masked_mean(valid.astype(jnp.float32), jnp.ones_like(valid))
        return loss * share, aux


class DiscountsTwice(Faulty):
    """Applies the discount twice."""

    def __init__(self, config, run_spec):
        sound = dataclasses.replace(config.sound, discount=config.sound.discount**2)
        super().__init__(dataclasses.replace(config, sound=sound), run_spec)
