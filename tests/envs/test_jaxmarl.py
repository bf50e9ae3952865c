"""JaxMARL's environments as rows of players; skipped if the extra is not installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.check.own_environment import random_action
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from tests.envs import test_conformance, test_fused_conformance
from tests.envs.cases import Case
from tests.envs.leavers import NUM_PLAYERS

jaxmarl = pytest.importorskip("jaxmarl")

pytestmark = [
    pytest.mark.usefixtures("lenient_jax"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*dtype.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*scatter inputs.*:FutureWarning"),
]

NUM_ENVS = 2
SPREAD = "MPE_simple_spread_v3"
BATTLE = "HeuristicEnemySMAX"


def make(name, **options):
    config = EnvConfig(suite="jaxmarl", id=name, options=options)
    return make_environment(config, num_envs=NUM_ENVS, seed=0)


def play(name, num_steps, **options):
    """Return the rows `[R, B]` of random actions, legal at the first row of each episode."""
    environment = make(name, **options)
    row = environment.reset()
    fused = environment.fused()
    step, state, rng = jax.jit(fused.step), fused.state, np.random.default_rng(0)
    rows = [row]
    for _ in range(num_steps):
        num_rows = NUM_ENVS * environment.spec.num_players
        action = random_action(environment.spec.action_space, row.action_mask, num_rows, rng)
        state, row = step(state, action)
        row = jax.tree.map(np.asarray, row)
        rows.append(row)
    return environment.spec, jax.tree.map(lambda *xs: np.stack(xs), *rows)


# The players' observations as JaxMARL has them; where players differ, the longest and a one-hot
# vector of the player. The choices of the player that has most, and whether some may be illegal.
SHAPES = [
    ("MPE_simple_v3", 1, (4,), 5, False),
    (SPREAD, 3, (18,), 5, False),
    ("MPE_simple_reference_v3", 2, (21,), 50, False),
    ("MPE_simple_tag_v3", 4, (16 + 4,), 5, False),
    ("MPE_simple_push_v3", 2, (19 + 2,), 5, False),
    ("MPE_simple_adversary_v3", 3, (10 + 3,), 5, False),
    ("MPE_simple_crypto_v3", 3, (8 + 3,), 4, False),
    ("MPE_simple_speaker_listener_v4", 2, (11 + 2,), 5, True),
    ("switch_riddle", 3, (2,), 3, False),
    ("SMAX", 10, (127,), 10, True),
    (BATTLE, 5, (127,), 10, True),
    ("hanabi", 2, (658,), 21, True),
    ("overcooked", 2, (4, 5, 26), 6, False),
    ("coin_game", 2, (36,), 5, False),
]


@pytest.mark.parametrize(("name", "num_players", "observation", "actions", "has_masks"), SHAPES)
def test_a_task_has_the_shapes_of_its_players(name, num_players, observation, actions, has_masks):
    spec = make(name).spec
    assert spec.num_players == num_players
    assert spec.observation.shape == observation
    assert spec.action_space.n == actions
    assert (spec.action_mask is not None) == has_masks


@pytest.mark.parametrize(
    ("name", "observation", "state"),
    [
        (SPREAD, (18,), 3 * 18 + 3),
        ("MPE_simple_tag_v3", (20,), 4 * 20 + 4),
        ("overcooked", (4, 5, 26), 2 * 520 + 2),
        (BATTLE, (127,), None),
    ],
)
def test_the_state_is_what_all_players_observe_or_that_of_the_world(name, observation, state):
    environment = make(name, state=True)
    row = environment.reset()
    spec, num_players = environment.spec, environment.spec.num_players
    assert spec.observation["observation"].shape == observation
    np.testing.assert_array_equal(make(name).reset().observation, row.observation["observation"])
    of_team = row.observation["state"].reshape(NUM_ENVS, num_players, -1)
    assert (of_team[..., -num_players:] == np.eye(num_players)).all()
    assert (of_team[..., :-num_players] == of_team[:, :1, :-num_players]).all()
    if state is not None:
        assert spec.observation["state"].shape == (state,)
        seen = row.observation["observation"].reshape(NUM_ENVS, -1)
        np.testing.assert_array_equal(of_team[:, 0, :-num_players], seen)
    else:
        states = environment.whole_state.task_state
        own = jaxmarl.make(name).get_world_state(jax.tree.map(lambda leaf: leaf[0], states))
        np.testing.assert_allclose(of_team[0, 0, :-num_players], own, rtol=1e-6)


CASE = Case(suite="jaxmarl", id="MPE_simple_tag_v3", fused=True, num_players=4, terminates=False)
LEAVERS = Case(
    suite="tests.envs.jaxmarl_leavers:make", id="Leavers", fused=True, num_players=NUM_PLAYERS
)
CHECKS = [
    test_conformance.test_stream_matches_the_spec,
    test_conformance.test_stream_resets_on_the_row_after_an_episode_end,
    test_conformance.test_stream_reset_rows_have_no_reward_and_end_no_episode,
    test_conformance.test_stream_ignores_the_action_of_a_final_row_and_depends_on_nothing_but_the_others,
    test_conformance.test_stream_truncates_at_the_limit,
    test_conformance.test_stream_differs_between_environments_and_episodes,
    test_fused_conformance.test_fused_stream_equals_the_stepped_one,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_stream_contract_is_kept(check):
    check(CASE)


LEAVING = [
    test_conformance.test_stream_repeats_the_final_row_of_a_player_until_its_environment_begins_anew,
    test_conformance.test_stream_terminates_without_truncating,
]


@pytest.mark.parametrize("check", [*CHECKS, *LEAVING], ids=lambda check: check.__name__)
def test_the_stream_contract_is_kept_by_players_that_leave_early(check):
    check(LEAVERS)


def test_rows_are_those_of_jaxmarl():
    environment = make(SPREAD)
    row = environment.reset()
    own, states = jaxmarl.make(SPREAD), environment.whole_state.task_state
    actions = np.array([0, 1, 2, 3, 4, 0], np.int32)
    following = environment.step(actions)
    for env in range(NUM_ENVS):
        state = jax.tree.map(lambda leaf, env=env: leaf[env], states)
        observations = own.get_obs(state)
        chosen = {agent: actions[3 * env + p] for p, agent in enumerate(own.agents)}
        after, _, rewards, _, _ = own.step_env(jax.random.key(9), state, chosen)
        for player, agent in enumerate(own.agents):
            np.testing.assert_allclose(row.observation[3 * env + player], observations[agent])
            at = 3 * env + player
            np.testing.assert_allclose(following.observation[at], after[agent], rtol=1e-5)
            np.testing.assert_allclose(following.reward[at], rewards[agent], rtol=1e-5)


def test_players_that_differ_are_padded_and_told_which_they_are():
    row = make("MPE_simple_speaker_listener_v4").reset()
    speaker, listener = row.observation[0], row.observation[1]
    assert np.abs(speaker[:3]).sum() > 0 and not speaker[3:11].any()
    assert speaker[11:].tolist() == [1, 0] and listener[11:].tolist() == [0, 1]
    assert row.action_mask[:2].sum(axis=1).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("options", "field"), [({}, "truncated"), ({"time_limit": "terminates"}, "terminated")]
)
def test_a_limit_of_time_truncates_unless_the_options_say_otherwise(options, field):
    _, rows = play(SPREAD, 30, **options)
    assert getattr(rows, field)[26].all()
    assert rows.done.sum() == rows.reward.shape[1]


def test_a_player_that_dies_stays_in_with_one_legal_action_until_its_team_ends():
    spec, rows = play(BATTLE, 60)
    assert spec.num_players == 5
    by_team = rows.done.reshape(len(rows.done), NUM_ENVS, 5)
    assert (by_team.all(axis=-1) == by_team.any(axis=-1)).all()
    assert rows.terminated.any() and not rows.truncated.any()
    is_dead = (rows.action_mask.sum(axis=-1) == 1) & ~rows.done
    assert is_dead.any()
    assert (rows.action_mask[is_dead].argmax(axis=-1) == 4).all()  # stop
    assert rows.reward[is_dead].any()


def test_a_battle_that_takes_too_long_is_truncated():
    _, rows = play(BATTLE, 8, max_steps=3, scenario="3m")
    assert rows.truncated[4].all() and not rows.terminated.any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("simple_spread", {}, "env.id: JaxMARL has no 'simple_spread'"),
        ("jaxnav", {}, "env.id: .* Set env.options.time_limit to truncates"),
        ("SMAX", {"scenario": "3n"}, "env.options.scenario: 'SMAX' has no '3n'"),
        ("SMAX", {"allies": 3}, "env.options: JaxMARL does not create 'SMAX'"),
        ("ant_4x2", {"time_limit": "truncates"}, "env.id: JaxMARL does not create 'ant_4x2'"),
        (SPREAD, {"time_limit": "ends"}, "env.options.time_limit: expected truncates"),
        (SPREAD, {"state": "all"}, "env.options.state: expected true or false"),
    ],
)
def test_what_jaxmarl_does_not_make_is_refused_by_its_key(name, options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        make(name, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["MPE_simple_tag_v3", "switch_riddle", "hanabi", "overcooked", "coin_game"]
)
def test_in_a_task_that_pays_no_player_after_its_done_all_players_are_done_together(name):
    """Another task needs an entry in the table of ends that says that it pays them."""
    own = jaxmarl.make(name)
    masks_of = getattr(own, "get_legal_moves", None)

    def step(carry, key):
        state = carry
        keys = jax.random.split(key, own.num_agents + 1)
        actions = {}
        for number, agent in enumerate(own.agents):
            legal = (
                jnp.ones(own.action_space(agent).n) if masks_of is None else masks_of(state)[agent]
            )
            logits = jnp.where(legal.astype(bool), 0.0, -jnp.inf)
            actions[agent] = jax.random.categorical(keys[number], logits)
        _, state, _, dones, _ = own.step(keys[-1], state, actions)
        return state, jnp.stack([jnp.asarray(dones[each]) for each in (*own.agents, "__all__")])

    _, state = own.reset(jax.random.key(0))
    _, dones = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 500))
    assert dones.any()
    assert (dones == dones[:, -1:]).all()
