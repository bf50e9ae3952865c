"""Agents with one fault each: wrappers around sound agents."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.reductions import learner_device_index, masked_mean
from sebulba.toolkit.sharding import shard_per_env_leaves
from tests.check.faulty_base import Faulty, with_trajectory
from tests.check.sound_wrappers import RewardsObservations, add_reward


class ShiftedReward(Faulty):
    """Learns transition t with the reward of row t, not of row t + 1."""

    def update_experience(self, *args):
        def shift(env_steps):
            return dataclasses.replace(env_steps, reward=jnp.roll(env_steps.reward, 1, axis=0))

        return with_trajectory(self, shift)(*args)


class NegatedReward(Faulty):
    """Learns to avoid rewards."""

    def update_experience(self, *args):
        def negate(env_steps):
            return dataclasses.replace(env_steps, reward=-env_steps.reward)

        return with_trajectory(self, negate)(*args)


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

        return with_trajectory(self, merge)(*args)


class RewardsObservationsWithoutEnd(RewardsObservations):
    """Treats a termination as a truncation, too."""

    def update_experience(self, *args):
        def truncate(env_steps):
            nowhere = jnp.zeros_like(env_steps.done)
            return dataclasses.replace(
                add_reward(env_steps), terminated=nowhere, truncated=env_steps.done
            )

        return with_trajectory(self, truncate)(*args)


class NeverReset(Faulty):
    """Keeps its recurrent state across episodes, both acting and learning."""

    def act(self, networks, actor_state, env_step, *, greedy):
        return self.sound.act(networks, actor_state, _never_first(env_step), greedy=greedy)

    def update_experience(self, *args):
        return with_trajectory(self, _never_first)(*args)


class NeverResetInActing(Faulty):
    """Resets its recurrent state in the loss, but not while acting."""

    def act(self, networks, actor_state, env_step, *, greedy):
        return self.sound.act(networks, actor_state, _never_first(env_step), greedy=greedy)


class NeverResetInLearner(Faulty):
    """Resets its recurrent state while acting, but not in the loss."""

    def update_experience(self, *args):
        return with_trajectory(self, _never_first)(*args)


class ForgetsStoredState(Faulty):
    """Unrolls every trajectory from a state of zeros in the loss."""

    def update_experience(self, networks, experience, initial, *args):
        core = jax.tree.map(jnp.zeros_like, initial.memory.core)
        memory = dataclasses.replace(initial.memory, core=core)
        initial = dataclasses.replace(initial, memory=memory)
        return self.sound.update_experience(networks, experience, initial, *args)


def _never_first(env_step):
    return dataclasses.replace(env_step, is_first=jnp.zeros_like(env_step.is_first))


class SharedKey(Faulty):
    """Gives all actors the same key."""

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        del key
        return self.sound.init_actor_state(networks, num_envs, jax.random.key(0), global_actor_id)


class SharedNumber(Faulty):
    """Draws one random number for all environments."""

    def act(self, networks, actor_state, env_step, *, greedy):
        action, extras, after = self.sound.act(networks, actor_state, env_step, greedy=greedy)
        number = jax.random.uniform(jax.random.fold_in(actor_state.key, 1))
        shares = jnp.cumsum(jax.nn.softmax(extras.policy.logits), axis=-1)
        sampled = jnp.argmax(shares >= number, axis=-1).astype(action.dtype)
        return action if greedy else sampled, extras, after


class WrongAxis(Faulty):
    """Splits the recurrent state along its units, not its environments."""

    def shard_actor_state(self, actor_state, sharding):
        placed = shard_per_env_leaves(actor_state, sharding, replicated=("key",))
        core = sharding.split(actor_state.memory.core, axis=1)
        memory = dataclasses.replace(placed.memory, core=core)
        return dataclasses.replace(placed, memory=memory)


class ReversesMemory(Faulty):
    """Places the memories of its environments in the opposite order; new ones are all zeros."""

    def shard_actor_state(self, actor_state, sharding):
        core = jax.tree.map(lambda leaf: leaf[::-1], actor_state.memory.core)
        memory = dataclasses.replace(actor_state.memory, core=core)
        return self.sound.shard_actor_state(
            dataclasses.replace(actor_state, memory=memory), sharding
        )


class CountsWeakly(Faulty):
    """Counts updates in its optimizer state, from a Python number on."""

    def init_opt_state(self, networks):
        return {"sound": self.sound.init_opt_state(networks), "count": jnp.asarray(0.0)}

    def optimize(self, networks, opt_state, *args):
        networks, sound = self.sound.optimize(networks, opt_state["sound"], *args)
        return networks, {"sound": sound, "count": opt_state["count"] + jnp.float32(1.0)}


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


class UnmaskedEntropy(Faulty):
    """Raises the entropy of final rows as well, whose actions are ignored."""

    def loss(self, networks, experience, key, clock):
        loss, aux = self.sound.loss(networks, experience, key, clock)
        outputs = self.sound.unroll_trajectory(networks, experience.initial, experience.trajectory)
        final = jnp.where(experience.trajectory.valid, 0.0, outputs.policy.entropy()[:-1])
        return loss - self.sound._config.entropy_cost * final.mean(), aux


class BootstrapsFromReset(Faulty):
    """Sees the reset after a truncation in place of the true final observation."""

    def update_experience(self, *args):
        def replace(env_steps):
            following = jnp.roll(env_steps.observation, -1, axis=0)
            following = following.at[-1].set(env_steps.observation[-1])
            mask = env_steps.truncated[..., None]
            observation = jnp.where(mask, following, env_steps.observation)
            return dataclasses.replace(env_steps, observation=observation)

        return with_trajectory(self, replace)(*args)


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


@pytree_dataclass
class AtMostAsLikely(Categorical):
    """Makes no action likelier than another policy does."""

    other: Categorical

    def log_prob(self, action):
        return jnp.minimum(Categorical.log_prob(self, action), self.other.log_prob(action))


class ClipsRatiosFromBelow(CurrentPolicyRatio):
    """Takes 1 for the least importance weight, not for the greatest."""

    def __init__(self, config, run_spec):
        no_clips = dict.fromkeys(("clip_rho", "clip_c", "clip_pg_rho"), 1e9)
        sound = dataclasses.replace(config.sound, **no_clips)
        super().__init__(dataclasses.replace(config, sound=sound), run_spec)

    def _with_policy(self, networks, experience, key, clock, policy):
        stored = experience.trajectory.extras.policy
        policy = AtMostAsLikely(logits=stored.logits, other=policy)
        return super()._with_policy(networks, experience, key, clock, policy)


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

        return with_trajectory(self, allow)(*args)


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
