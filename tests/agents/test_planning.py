"""Search with a known model: against mctx's own call, and to the true values of a small task."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

mctx = pytest.importorskip("mctx", reason="needs the extra search")

from sebulba_agents.planning import Root, SearchSettings, Step, in_range_of_tree, plan  # noqa: E402

GAMMA = 0.9
# A chain of five states: action 0 goes left, 1 goes right, 2 stays and pays a little. The right end
# pays 1 and terminates.
NEXT = np.array([[0, 1, 0], [0, 2, 1], [1, 3, 2], [2, 4, 3], [4, 4, 4]])
REWARD = np.float32([[0, 0, 0.05], [0, 0, 0.05], [0, 0, 0.05], [0, 1, 0.05], [0, 0, 0]])
DISCOUNT = np.where(NEXT == 4, np.float32(0.0), np.float32(GAMMA))
TRUE_POLICY = np.array([1, 1, 1, 1])


@dataclasses.dataclass(frozen=True)
class Table:
    """A tabular model; its parameters are logits `[5, 3]` and values `[5]`."""

    def root(self, params, observation):
        return Root(policy=params[0][observation], value=params[1][observation], latent=observation)

    def step(self, params, latent, action):
        after = jnp.asarray(NEXT, jnp.int32)[latent, action]
        return Step(
            reward=jnp.asarray(REWARD)[latent, action],
            discount=jnp.asarray(DISCOUNT)[latent, action],
            policy=params[0][after],
            value=params[1][after],
            latent=after,
        )


def run_plan(params, observation, *, seed=0, gumbel_scale=1.0, mask=None, least_range=0.1):
    return plan(
        Table(),
        params,
        jax.random.key(seed),
        observation,
        settings=SearchSettings(
            num_simulations=16, max_considered_actions=3, least_range=least_range
        ),
        action_mask=mask,
        gumbel_scale=gumbel_scale,
    )


def true_values():
    values = np.zeros(5)
    for _ in range(100):
        values = np.max(REWARD + DISCOUNT * values[NEXT], -1)
    return values


def random_params(seed=0):
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    return logits, jnp.asarray(rng.normal(size=5), jnp.float32)


def search_by_mctx(params, observation, *, seed, least_range):
    """Return the output of mctx itself, with another name for every part."""
    root = Table().root(params, observation)

    def recurrent(params, key, action, latent):
        step = Table().step(params, latent, action)
        return mctx.RecurrentFnOutput(
            reward=step.reward, discount=step.discount, prior_logits=step.policy, value=step.value
        ), step.latent

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return mctx.gumbel_muzero_policy(
            params,
            jax.random.key(seed),
            mctx.RootFnOutput(prior_logits=root.policy, value=root.value, embedding=root.latent),
            recurrent,
            num_simulations=16,
            max_num_considered_actions=3,
            qtransform=functools.partial(in_range_of_tree, least_range=least_range),
        )


@pytest.mark.slow
@pytest.mark.parametrize("least_range", [0.1, 100.0])
def test_a_plan_is_mctx_own_result_on_a_known_task(least_range):
    params, observation = random_params(), jnp.arange(4)
    expected = search_by_mctx(params, observation, seed=3, least_range=least_range)
    got = jax.jit(lambda: run_plan(params, observation, seed=3, least_range=least_range))()
    np.testing.assert_array_equal(got.action, expected.action)
    np.testing.assert_allclose(got.policy, expected.action_weights, rtol=1e-5)
    tree = jax.tree.map(np.asarray, expected.search_tree)
    q = tree.children_rewards + tree.children_discounts * tree.children_values
    for b in range(4):
        # Equation 8 of the paper, with values divided by the range of the whole tree.
        visited = q[b][tree.children_visits[b] > 0]
        spread = max(visited.max() - visited.min(), least_range)
        count = tree.children_visits[b, 0]
        assert (count > 0).all()
        scaled = (50.0 + count.max()) * 0.1 * q[b, 0] / spread
        policy = np.asarray(jax.nn.softmax(params[0][b] + scaled))
        np.testing.assert_allclose(got.policy[b], policy, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(got.value[b], np.sum(policy * q[b, 0]), rtol=1e-3, atol=1e-5)


def test_repeated_search_finds_true_values_and_the_best_policy():
    """Policy iteration: each state's value and policy become those that a search found."""

    @jax.jit
    def improve(params, seed):
        found = run_plan(params, jnp.arange(4), seed=seed)
        logits = jnp.log(found.policy + 1e-6)
        return params[0].at[:4].set(logits), params[1].at[:4].set(found.value)

    params = (jnp.zeros((5, 3)), jnp.zeros(5))
    for seed in range(20):
        params = improve(params, seed)
    np.testing.assert_array_equal(np.argmax(params[0][:4], axis=-1), TRUE_POLICY)
    np.testing.assert_allclose(params[1][:4], true_values()[:4], atol=0.01)


@pytest.mark.slow
def test_without_noise_the_key_does_not_matter_and_illegal_actions_are_not_taken():
    params, observation = random_params(), jnp.tile(jnp.arange(4), 50)
    mask = jnp.ones((200, 3), bool).at[:100, 1].set(False)
    acting = jax.jit(run_plan, static_argnames=("gumbel_scale",))
    first, second = (
        acting(params, observation, seed=seed, gumbel_scale=0.0, mask=mask) for seed in (0, 1)
    )
    np.testing.assert_array_equal(first.action, second.action)
    noisy = acting(params, observation, seed=0, gumbel_scale=1.0, mask=mask)
    assert len(np.unique(noisy.action[100:])) > 1
    assert not (np.asarray(noisy.action)[:100] == 1).any()
    assert not np.asarray(noisy.policy)[:100, 1].any()
