"""Parallel environments of PettingZoo as rows of players; some need the extra."""

import importlib.util
import warnings

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.check.own_environment import random_action
from sebulba.config import EnvConfig
from sebulba.envs import make_environment, without_workers
from sebulba.envs.base import EnvironmentFault
from sebulba.errors import ConfigError
from tests.envs.cases import assert_same
from tests.envs.leavers import NUM_ACTIONS, NUM_PLAYERS, LeaversInPython

LEAVERS = "tests.envs.leavers:LeaversInPython"
NUM_ENVS = 2

needs_mpe2 = pytest.mark.skipif(
    importlib.util.find_spec("mpe2") is None, reason="needs the extra pettingzoo: mpe2 is missing"
)


def make(name, *, num_envs=NUM_ENVS, wrappers=(), **options):
    config = EnvConfig(suite="pettingzoo", id=name, options=options, wrappers=wrappers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pygame and of environments themselves
        return make_environment(config, num_envs=num_envs, seed=3)


def play(environment, num_steps=40):
    rng = np.random.default_rng(0)
    num_rows = environment.num_envs * environment.spec.num_players
    rows = [environment.reset()]
    for _ in range(num_steps):
        mask = rows[-1].action_mask
        action = random_action(environment.spec.action_space, mask, num_rows, rng)
        rows.append(environment.step(action))
    environment.close()
    return jax.tree.map(lambda *xs: np.stack(xs), *rows)


@pytest.mark.parametrize("has_masks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_worker_processes_give_the_same_rows(has_masks):
    rows = play(make(LEAVERS, has_masks=has_masks))
    assert rows.done.any() and (rows.done.reshape(41, NUM_ENVS, NUM_PLAYERS).sum(axis=2) == 1).any()
    assert_same(rows, play(make(LEAVERS, has_masks=has_masks, vectorization_mode="async")))


def test_masks_are_no_part_of_the_observation_and_stay_with_a_player_that_is_out():
    environment = make(LEAVERS, has_masks=True)
    assert environment.spec.observation.shape == (3,)
    rows = play(environment)
    elapsed = rows.observation[..., 1]
    expected = np.arange(NUM_ACTIONS) <= elapsed[..., None]
    np.testing.assert_array_equal(rows.action_mask, expected)


def test_spaces_are_read_without_worker_processes():
    config = EnvConfig(
        suite="pettingzoo", id=LEAVERS, options={"vectorization_mode": "async", "late": None}
    )
    assert without_workers(config).options["vectorization_mode"] == "sync"


def test_a_frame_shows_the_first_environment():
    environment = make(LEAVERS, render_mode="rgb_array")
    environment.reset()
    environment.step(np.zeros(NUM_ENVS * NUM_PLAYERS, np.int32))
    assert (environment.render() == 1).all()
    environment.close()


class Doubled:
    """Pays twice as much."""

    def __init__(self, environment):
        self.environment = environment

    def __getattr__(self, name):
        return getattr(self.environment, name)

    def step(self, actions):
        observations, rewards, *rest = self.environment.step(actions)
        return observations, {player: 2 * each for player, each in rewards.items()}, *rest


def test_wrappers_are_around_the_players_together():
    rows = play(make(LEAVERS))
    doubled = play(make(LEAVERS, wrappers=(f"{__name__}:Doubled",)))
    np.testing.assert_allclose(doubled.reward, 2 * rows.reward)


class WritesToItsArrays(LeaversInPython):
    """Returns the same arrays at every step, and writes to those of all players."""

    def __init__(self):
        super().__init__()
        self._arrays = {player: np.zeros(3, np.float32) for player in self.possible_agents}

    def step(self, actions):
        for player, array in self._arrays.items():
            array[:] = super()._observe(player, actions.get(player, 3))
        return super().step(actions)

    def _observe(self, player, action):
        self._arrays[player][:] = super()._observe(player, action)
        return self._arrays[player]


def test_a_final_row_is_repeated_although_the_environment_writes_to_its_arrays():
    assert_same(play(make(f"{__name__}:WritesToItsArrays")), play(make(LEAVERS)))


class Different(LeaversInPython):
    """Player 0 sees and can do less than the others."""

    def observation_space(self, player):
        size = 2 if player == "player_0" else 3
        return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def action_space(self, player):
        return gymnasium.spaces.Discrete(2 if player == "player_0" else NUM_ACTIONS)

    def _observe(self, player, action):
        assert action in self.action_space(player)
        return super()._observe(player, action)[: 2 if player == "player_0" else 3]


def test_players_that_differ_are_padded_and_told_which_they_are():
    environment = make(f"{__name__}:Different")
    assert environment.spec.observation.shape == (3 + NUM_PLAYERS,)
    rows = play(environment)
    by_player = rows.observation.reshape(41, NUM_ENVS, NUM_PLAYERS, -1)
    assert (by_player[..., 3:] == np.eye(NUM_PLAYERS)).all()
    assert not by_player[:, :, 0, 2].any() and by_player[:, :, 1, 2].any()
    legal = rows.action_mask.reshape(41, NUM_ENVS, NUM_PLAYERS, -1).sum(axis=-1)
    assert (legal == [2, NUM_ACTIONS, NUM_ACTIONS]).all()


class DifferentImages(LeaversInPython):
    """Players with images of two sizes."""

    def observation_space(self, player):
        return gymnasium.spaces.Box(0, 255, (8, 8 + int(player[-1]), 3), np.uint8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mpe2.simple_spread_v3", "env.id: expected package:environment.*write mpe2:simple_spread"),
        ("tests.envs.leavers:Nobody", "env.id: tests.envs.leavers has no Nobody"),
        (f"{__name__}:NUM_ENVS", "env.id: expected a class, a function, or a module"),
        (f"{__name__}:DifferentImages", "env.id: expected vectors as observations of players"),
    ],
)
def test_what_is_no_parallel_environment_is_refused_by_its_key(name, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        make(name)


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match=r"^env.options: .*num_cycles"):
        make(LEAVERS, num_cycles=3)


def test_a_player_that_comes_in_late_is_refused():
    with pytest.raises(EnvironmentFault, match=r"env 0: reset raised .*none of \['player_2'\]"):
        make(LEAVERS, late="player_2").reset()


class WithState(LeaversInPython):
    """Has a state: the numbers of all players, whoever is there, and the step."""

    state_space = gymnasium.spaces.Box(-np.inf, np.inf, (NUM_PLAYERS + 1,), np.float32)

    def state(self):
        return np.array([*self._numbers.values(), self._elapsed], np.float32)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_state_of_all_stays_with_the_final_row_of_a_player_that_is_out(mode):
    environment = make(f"{__name__}:WithState", state=True, vectorization_mode=mode)
    assert environment.spec.observation["state"].shape == (NUM_PLAYERS + 1,)
    rows = play(environment)
    assert_same(rows.observation["observation"], play(make(LEAVERS)).observation)
    state = rows.observation["state"].reshape(41, NUM_ENVS, NUM_PLAYERS, -1)
    numbers = rows.observation["observation"][..., 0].reshape(41, NUM_ENVS, 1, NUM_PLAYERS)
    np.testing.assert_array_equal(state[..., :-1], np.broadcast_to(numbers, state[..., :-1].shape))
    # The step of a player, which stays with it when it has left.
    elapsed = rows.observation["observation"][..., 1].reshape(41, NUM_ENVS, NUM_PLAYERS)
    np.testing.assert_array_equal(state[..., -1], elapsed)


def test_an_environment_without_a_state_is_refused_by_the_option():
    with pytest.raises(ConfigError, match=r"^env.options.state: .* got leavers. Set it to false"):
        make(LEAVERS, state=True)


SHAPES = [
    ("simple_v3", 1, (4,), 5, False),
    ("simple_spread_v3", 3, (18,), 5, False),
    ("simple_reference_v3", 2, (21,), 50, False),
    ("simple_adversary_v3", 3, (10 + 3,), 5, False),
    ("simple_crypto_v3", 3, (8 + 3,), 4, False),
    ("simple_push_v3", 2, (19 + 2,), 5, False),
    ("simple_speaker_listener_v4", 2, (11 + 2,), 5, True),
    ("simple_tag_v3", 4, (16 + 4,), 5, False),
    ("simple_world_comm_v3", 6, (34 + 6,), 20, True),
]


@needs_mpe2
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "num_players", "observation", "actions", "has_masks"), SHAPES)
def test_an_environment_of_mpe_has_the_shapes_of_its_players_and_steps(
    name, num_players, observation, actions, has_masks
):
    environment = make(f"mpe2:{name}", max_cycles=10)
    spec = environment.spec
    assert spec.num_players == num_players
    assert spec.observation.shape == observation
    assert spec.action_space.n == actions
    assert (spec.action_mask is not None) == has_masks
    rows = play(environment, num_steps=24)
    assert rows.truncated[10].all() and rows.is_first[11].all() and not rows.terminated.any()


OTHERS = [
    ("pettingzoo.butterfly:knights_archers_zombies_v11", "pygame", 4, (27, 5), 6),
    ("pettingzoo.butterfly:cooperative_pong_v6", "pygame", 2, (280, 480, 3), 3),
    ("pettingzoo.butterfly:pistonball_v6", "pymunk", 20, (457, 120, 3), None),
    ("pettingzoo.sisl:pursuit_v5", "scipy", 8, (7, 7, 3), 5),
    ("pettingzoo.sisl:multiwalker_v9", "Box2D", 3, (31,), None),
]


@needs_mpe2
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "package", "num_players", "observation", "actions"),
    [
        pytest.param(*each, marks=pytest.mark.slow if "pistonball" in each[0] else ())
        for each in OTHERS
    ],
)
def test_an_environment_of_pettingzoo_has_the_shapes_of_its_players_and_steps(
    name, package, num_players, observation, actions
):
    pytest.importorskip(package)
    environment = make(name)
    spec = environment.spec
    assert (spec.num_players, spec.observation.shape) == (num_players, observation)
    assert getattr(spec.action_space, "n", None) == actions
    rows = play(environment, num_steps=3)
    assert rows.reward.shape == (4, NUM_ENVS * num_players)


@needs_mpe2
@pytest.mark.filterwarnings("ignore")
def test_knights_and_archers_that_die_are_out_until_their_team_ends():
    pytest.importorskip("pygame")
    name = "pettingzoo.butterfly:knights_archers_zombies_v11"
    rows = play(make(name, spawn_delay=1, max_cycles=150), num_steps=160)
    by_team = jax.tree.map(lambda leaf: leaf.reshape(161, NUM_ENVS, 4, *leaf.shape[2:]), rows)
    is_held = by_team.done[:-1] & ~by_team.done[:-1].all(axis=-1, keepdims=True)
    assert is_held.any()
    for field in ("observation", "terminated", "truncated"):
        leaf = getattr(by_team, field)
        np.testing.assert_array_equal(leaf[1:][is_held], leaf[:-1][is_held])
    assert not by_team.reward[1:][is_held].any() and not by_team.is_first[1:][is_held].any()


@needs_mpe2
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("mpe2:simple_spread_v3", (54,)),
        ("mpe2:simple_tag_v3", (62,)),
        ("pettingzoo.sisl:pursuit_v5", None),
        ("pettingzoo.sisl:multiwalker_v9", None),
    ],
)
def test_the_state_of_an_environment_of_pettingzoo_comes_with_each_row(name, state):
    if name.endswith("walker_v9"):
        pytest.importorskip("Box2D")
    environment = make(name, state=True)
    num_players = environment.spec.num_players
    spec = environment.spec.observation["state"]
    assert state is None or spec.shape == state
    rows = play(environment, num_steps=12)
    by_team = rows.observation["state"].reshape(13, NUM_ENVS, num_players, *spec.shape)
    assert (by_team == by_team[:, :, :1]).all() and np.isfinite(by_team).all()
    assert not (by_team[0] == by_team[1]).all()


@needs_mpe2
@pytest.mark.filterwarnings("ignore")
def test_players_that_take_turns_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"^env.id: .*at the same time, got tictactoe_v3, whose"):
        make("pettingzoo.classic:tictactoe_v3")
