"""What users get of a policy is what the environment takes: loaded, exported, evaluated, filmed."""

import gymnasium
import jax
import numpy as np
import pytest

import sebulba
from sebulba.config import Config, EnvConfig
from sebulba.config.run_spec import make_run_spec
from sebulba.errors import ConfigError
from sebulba.evaluation.playing import play, record
from sebulba.evaluation.policy import Policy
from sebulba.evaluation.stored import StoredPolicy, read_environment_spec
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy as ExportedPolicy
from sebulba.export.policy import export_policy
from sebulba.process import EXIT_DONE
from sebulba_agents.config import RandomConfig
from sebulba_agents.random import RandomAgent
from tests.envs.units import DISCRETE, SPACES, mask_of

NUM_ENVS = 3
MASKED = ("sebulba.envs.gymnasium_wrappers:MaskFromInfo",)


def random_policy(suite="gymnasium", name="tests.envs.units:Units-v0", wrappers=(), **options):
    """Return the policy of a random agent, which no run has trained."""
    env = EnvConfig(suite=suite, id=name, options=options, wrappers=wrappers)
    config, spec = Config(env=env, agent=RandomConfig()), read_environment_spec(env)
    run_spec = make_run_spec(config, spec, num_actors=1, num_learner_devices=1)
    return Policy(
        StoredPolicy(
            config=config,
            agent=RandomAgent(config.agent, run_spec),
            environment=spec,
            networks=(),
            device=jax.devices()[0],
            learner_cycle=0,
            env_steps=0,
            updates=0,
        ),
        greedy=True,
        seed=0,
    )


@pytest.mark.parametrize("kind", SPACES)
def test_gymnasium_takes_the_actions_of_a_policy_and_of_its_export(kind, tmp_path):
    policy = random_policy(kind=kind)
    env = gymnasium.make("Units-v0", kind=kind)  # refuses an action outside its space
    state = None
    for episode in range(3):
        observation, _ = env.reset(seed=episode)
        action, state = policy(observation, state, is_first=True)
        env.step(action)
    export_policy(
        policy.stored, tmp_path, num_envs=NUM_ENVS, greedy=True, seed=0, platforms=["cpu"]
    )
    # An exported policy repeats the random numbers of the first start.
    policy, exported = random_policy(kind=kind), ExportedPolicy(tmp_path)
    state = exported_state = None
    envs = gymnasium.make_vec("Units-v0", num_envs=NUM_ENVS, kind=kind)
    observations, _ = envs.reset(seed=0)
    for _ in range(2):
        action, state = policy(observations, state)
        again, exported_state = exported(observations, exported_state)

        def check(x, y):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-5)

        assert type(action) is type(again)
        jax.tree.map(check, action, again)
        envs.step(again)
        observations, *_ = envs.step(action)


@pytest.mark.parametrize("kind", DISCRETE)
@pytest.mark.parametrize("masks", [pytest.param("flat", marks=pytest.mark.slow), "structured"])
def test_a_mask_allows_what_it_says_in_evaluations_and_loaded_policies(kind, masks):
    policy = random_policy(kind=kind, masks=masks, wrappers=MASKED)
    assert set(sebulba.evaluate(policy, episodes=9, parallel_envs=3).returns) == {1.0}
    env = gymnasium.make("Units-v0", kind=kind, masks=masks)
    for episode in range(3):
        observation, info = env.reset(seed=episode)
        action, _ = policy(observation, action_mask=info["action_mask"])
        assert env.step(action)[1] == 1.0


@pytest.mark.parametrize("kind", ["dict", "grid"])
def test_a_mask_of_a_jax_task_allows_what_it_says(kind):
    policy = random_policy("jax", "tests.envs.units:MaskedUnitsTask", kind=kind)
    assert set(sebulba.evaluate(policy, episodes=9, parallel_envs=3).returns) == {1.0}


def test_a_batch_takes_masks_in_the_structure_of_the_action():
    policy = random_policy(kind="dict", masks="structured", wrappers=MASKED)
    masks = [mask_of(SPACES["dict"], context) for context in range(3)]
    observations = np.eye(3, dtype=np.float32)
    action, _ = policy(observations, action_mask=jax.tree.map(lambda *x: np.stack(x), *masks))
    for context in range(3):
        env = gymnasium.make("Units-v0", kind="dict").unwrapped
        env._context = context
        assert env.step(jax.tree.map(lambda x, i=context: x[i], action))[1] == 1.0


def test_a_run_with_a_dict_of_actions_is_loaded_evaluated_and_exported(run_of, tmp_path):
    run_dir = run_of("units")
    policy = sebulba.load_policy(run_dir)
    env = gymnasium.make("Units-v0", kind="dict")
    observation, _ = env.reset(seed=0)
    env.step(policy(observation)[0])
    assert len(sebulba.evaluate(run_dir, episodes=4, parallel_envs=2).returns) == 4
    assert export(_parser().parse_args([str(run_dir), "-o", str(tmp_path)])) == EXIT_DONE
    action, _ = ExportedPolicy(tmp_path)(observation[None])
    env.reset(seed=0)
    env.step(jax.tree.map(lambda x: x[0], action))


def test_a_mask_of_combinations_changes_nothing_for_the_environment():
    policy = random_policy("envpool", "Minesweeper-v0")
    assert policy.stored.environment.action_space.n == 100
    observation = {
        name: np.zeros(leaf.shape, leaf.dtype)
        for name, leaf in policy.stored.environment.observation.items()
    }
    mask = np.zeros((10, 10), bool)
    mask[7, 3] = True
    action, _ = policy(observation, action_mask=mask)
    assert action.tolist() == [7, 3] and action.dtype == np.int32


def test_a_video_has_as_many_whole_episodes_as_asked_for():
    stored = random_policy("jax", "Catch-v0").stored
    arguments = {"seed": 0, "greedy": True, "parallel_envs": 8, "max_episode_steps": None}
    evaluation, _ = play(stored, episodes=8, num_recorded=4, **arguments)
    assert len(list(evaluation.environment.frames())) == 4 * 10  # 9 steps each
    with pytest.raises(ConfigError, match="episodes: expected at least the 9 to record, got 8"):
        play(stored, episodes=8, num_recorded=9, **arguments)


def test_a_video_shows_episodes_of_structured_actions(tmp_path):
    policy = random_policy("jax", "tests.envs.units:UnitsTask", kind="dict")
    file = tmp_path / "video.gif"
    record(policy.stored, file, episodes=2, fps=25, seed=0, greedy=True)
    assert file.stat().st_size > 0
