"""pgx's games; skipped if the extra is not installed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sebulba
from sebulba.config import EnvConfig
from sebulba.config.loading import load_config
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.run import training

pgx = pytest.importorskip("pgx")

from sebulba.envs.pgx import LookAhead  # noqa: E402

pytestmark = pytest.mark.usefixtures("lenient_jax")


def make(name, *, num_envs=16, **options):
    config = EnvConfig(suite="pgx", id=name, options=options)
    return make_environment(config, num_envs=num_envs, seed=1)


def random_legal(row, rng):
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in row.action_mask], np.int32)


def first_legal(state, key):
    """Opponent that always plays the first legal action."""
    return state.legal_action_mask.argmax().astype(np.int32)


def test_games_are_played_against_an_opponent_from_both_sides():
    environment = make("tic_tac_toe")
    rng = np.random.default_rng(0)
    row = environment.reset()
    stones = row.observation.astype(int).sum(axis=(1, 2, 3))
    assert set(stones) == {0, 1}  # the opponent has begun some games
    outcomes = []
    for _ in range(30):
        row = environment.step(random_legal(row, rng))
        outcomes += list(row.reward[row.terminated])
        assert not row.reward[~row.terminated].any()
        assert row.action_mask.any(axis=-1).all()
    assert {-1.0, 0.0, 1.0} >= set(outcomes) >= {-1.0, 1.0}


def test_an_illegal_action_loses_the_game():
    environment = make("tic_tac_toe", opponent=f"{__name__}:first_legal")
    row = environment.step(random_legal(environment.reset(), np.random.default_rng(0)))
    row = environment.step(np.argmin(row.action_mask, axis=-1).astype(np.int32))
    assert row.terminated.all()
    np.testing.assert_array_equal(row.reward, -1.0)


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_holdem", "connect_four", "tic_tac_toe"])
def test_games_are_played_in_turns_with_the_rewards_of_pgx(name):
    """Compare with the game alone, in which the opponent plays the same actions."""
    environment, rng = make(name, opponent="self"), np.random.default_rng(0)
    assert environment.spec.opponents is not None

    def opponent(state, row, waiting):
        # Its moves are legal, and are logged for each game.
        action = jnp.argmax(row.action_mask, axis=-1).astype(jnp.int32)
        log, count = state
        count = jnp.where(row.is_first & waiting, 0, count)
        rows = jnp.arange(len(waiting))
        log = log.at[rows, count].set(jnp.where(waiting, action, log[rows, count]))
        return action, (log, jnp.where(waiting, count + 1, count))

    log = (jnp.zeros((16, 64), jnp.int32), jnp.zeros(16, jnp.int32))
    environment.play_against("first legal", opponent, log)
    row = environment.reset()
    starts = [environment.whole_state.plies.task_state]
    actions, finished = [], 0
    for _ in range(12):
        actions.append(random_legal(row, rng))
        row = environment.step(actions[-1])
        assert row.action_mask.any(axis=-1).all()
        assert not row.reward[~row.done].any()
        finished += int(row.done.sum())
        for i in np.flatnonzero(row.done):
            assert environment.whole_state.plies.task_state.rewards[i, 0] == row.reward[i]
    assert finished > 0 and starts


@pytest.mark.parametrize("opponent", ["random", "self"])
def test_a_board_shows_the_stones_of_both_players(opponent):
    environment, rng = make("connect_four", opponent=opponent, num_envs=4), np.random.default_rng(0)
    row = environment.reset()
    for _ in range(3):
        row = environment.step(random_legal(row, rng))
    frame, stones = environment.render(), row.observation[0].astype(bool)
    assert not row.done[0] and stones.any(axis=(0, 1)).all()
    np.testing.assert_array_equal((frame == [255, 140, 0]).all(axis=-1), stones[..., 0])
    np.testing.assert_array_equal((frame == 255).all(axis=-1), stones[..., 1])


@pytest.mark.parametrize(
    ("moves", "best"),
    [
        ([0, 3, 1, 4], {2}),  # wins
        ([0, 3, 1], {2}),  # prevents a loss
        ([0, 4, 1, 5, 7], {3}),  # wins although it could prevent a loss
        ([0, 4], {1, 2, 3, 5, 6, 7, 8}),  # any legal one
    ],
)
def test_an_opponent_looks_ahead(moves, best):
    game = pgx.make("tic_tac_toe")
    state = game.init(jax.random.key(0))
    for move in moves:
        state = game.step(state, jnp.int32(move))
    keys = jax.random.split(jax.random.key(1), 100)
    choices = jax.jit(jax.vmap(functools.partial(LookAhead(game), state)))(keys)
    assert set(np.asarray(choices).tolist()) == best


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tictactoe", {}, "pgx has no 'tictactoe'; did you mean tic_tac_toe"),
        ("tic_tac_toe", {"oponent": "random"}, "did you mean opponent"),
        ("tic_tac_toe", {"max_episode_steps": 0}, "expected an int of at least 1, got 0"),
        ("tic_tac_toe", {"opponent": "self", "pool_size": 2}, "expected null with opponent: self"),
        ("tic_tac_toe", {"opponent": "selv"}, "directory of a run, got 'selv'; did you mean self"),
        ("sparrow_mahjong", {"opponent": "self"}, "which has 3 players"),
        ("sparrow_mahjong", {"opponent": "runs/other"}, "which has 3 players, got runs/other"),
    ],
)
def test_a_wrong_name_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


def play_legally(policy, environment, num_steps):
    """Return how many of the policy's sampled actions are illegal, and its games' outcomes."""
    agent, networks = policy.stored.agent, policy.stored.networks
    first = environment.reset()
    fused, num_envs = environment.fused(), environment.num_envs
    state = agent.init_actor_state(networks, num_envs, jax.random.key(1), 0)

    def step(carry, _):
        env_state, row, state = carry
        action, _, state = agent.act(networks, state, row, greedy=False)
        illegal = ~jnp.take_along_axis(row.action_mask, action[:, None], axis=-1)[:, 0]
        counts = {"illegal": illegal & ~row.done, "steps": ~row.done}
        env_state, row = fused.step(env_state, action)
        counts |= {"games": row.terminated, "won": row.terminated & (row.reward > 0.0)}
        counts["lost"] = row.terminated & (row.reward < 0.0)
        return (env_state, row, state), jax.tree.map(jnp.sum, counts)

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=num_steps // num_envs)[1])
    first = jax.tree.map(jnp.asarray, first)
    counts = run((fused.state, first, state))
    return {name: int(count.sum()) for name, count in counts.items()}


@pytest.mark.slow
def test_a_game_is_learned_without_an_illegal_action_in_a_million(tmp_path):
    overrides = {
        "env": {"suite": "pgx", "id": "connect_four"},
        "agent": {"name": "ppo", "num_minibatches": 4, "discount": 1.0},
        "devices": {"actor": [0], "learner": [0]},
        "actor": {"num_envs": 128, "threads_per_device": 1, "trajectory_length": 32},
        "run": {"total_env_steps": 400_000, "mode": "serial"},
        "run_dir": str(tmp_path / "run"),
    }
    config = load_config(None, overrides)
    assert training.train_to_exit_code(config) == 0
    environment = make_environment(config.env, num_envs=1024, seed=99)
    counts = play_legally(sebulba.load_policy(config.run_dir), environment, 1_300_000)
    print(counts)
    assert counts["steps"] >= 1_000_000
    assert counts["illegal"] == 0
    assert counts["won"] > 0.8 * counts["games"]
