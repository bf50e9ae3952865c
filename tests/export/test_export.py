"""An exported policy acts as the stored one, where neither Sebulba nor the agent exists."""

import json
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import sebulba
from sebulba.config import Config, EnvConfig
from sebulba.errors import ConfigError
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy, _leaves_like
from sebulba.export.policy import export_policy
from sebulba.process import EXIT_CONFIG, EXIT_DONE
from sebulba.pytree import without_key
from sebulba.references import CORES
from tests.extras import needs_search
from tests.toys import ToyConfig

NUM_ENVS, STEPS = 3, 6
SCRIPT = """
import sys
sys.modules["sebulba"] = sys.modules["sebulba_agents"] = sys.modules["flax"] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
from policy import Policy
policy, state, results = Policy(sys.argv[1]), None, {}
inputs = np.load(sys.argv[2])
for t in range(len(inputs["observation"])):
    action, state = policy(
        inputs["observation"][t], state, reward=inputs["reward"][t], is_first=inputs["is_first"][t]
    )
    results[f"action_{t}"] = action
results |= {f"state_{i}": leaf for i, leaf in enumerate(state)}
np.savez(sys.argv[3], **results)
"""


@pytest.mark.parametrize(
    "name",
    [
        "r2d2",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("sac", "cartpole")),
        *(pytest.param(f"r2d2 {core}", marks=pytest.mark.slow) for core in CORES if core != "lstm"),
        pytest.param("gumbel_muzero", marks=[pytest.mark.slow, needs_search]),
    ],
)
def test_exported_policy_acts_as_the_stored_one_without_sebulba(run_of, tmp_path, name):
    directory = tmp_path / "export"
    arguments = [str(run_of(name)), "-o", str(directory), "--num-envs", str(NUM_ENVS)]
    assert export(_parser().parse_args([*arguments, "--stochastic"])) == EXIT_DONE
    policy = sebulba.load_policy(run_of(name), greedy=False)
    spec = policy.stored.environment.observation
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(STEPS, NUM_ENVS, *spec.shape)).astype(spec.dtype)
    rewards = rng.normal(size=(STEPS, NUM_ENVS)).astype(np.float32)
    is_first = np.zeros((STEPS, NUM_ENVS), bool)
    is_first[0], is_first[3, 1] = True, True
    inputs, outputs = tmp_path / "inputs.npz", tmp_path / "outputs.npz"
    np.savez(inputs, observation=observations, reward=rewards, is_first=is_first)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, directory, inputs, outputs], check=True, timeout=300
    )
    results, state = np.load(outputs), None
    for t in range(STEPS):
        action, state = policy(observations[t], state, reward=rewards[t], is_first=is_first[t])
        assert results[f"action_{t}"].dtype == action.dtype
        np.testing.assert_allclose(results[f"action_{t}"], action, rtol=1e-6, atol=1e-6)
    for i, leaf in enumerate(jax.tree.leaves(state.actor_state)):
        np.testing.assert_allclose(results[f"state_{i}"], without_key(leaf), rtol=1e-6, atol=1e-6)
    description = json.loads((directory / "policy.json").read_text())
    assert description["num_envs"] == NUM_ENVS
    exported, observation = Policy(directory), np.zeros((NUM_ENVS, *spec.shape), spec.dtype)
    for arguments, message in [
        ({"observation": observation[0]}, r"observation: expected \S+\[3, .*, got"),
        ({"state": 0.5}, "state: expected None or what the previous call returned, got 0.5"),
        ({"reward": [1.0, 2.0]}, r"reward: expected \[\] or \[3\], got \[2\]"),
        ({"is_first": [True]}, r"is_first: expected \[\] or \[3\], got \[1\]"),
        ({"action_mask": [[True]]}, r"action_mask: expected none, .* got \[1, 1\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            exported(**{"observation": observation, **arguments})


def test_an_exported_policy_says_what_is_wrong_with_an_observation():
    spec = {
        "image": {"shape": [1, 3, 3], "dtype": "uint8"},
        "rest": [{"shape": [1], "dtype": "float32"}, {"shape": [1, 2], "dtype": "float32"}],
    }
    image, rest = np.zeros((1, 3, 3), np.uint8), (np.zeros(1), np.zeros((1, 2)))
    leaves = list(_leaves_like(spec, {"rest": rest, "image": image}, "observation"))
    assert [leaf.dtype for leaf in leaves] == [np.uint8, np.float32, np.float32]
    for wrong, message in [
        ({"image": image}, "observation: expected a dict of image, rest, got a dict of image"),
        (image, r"observation: expected a dict of image, rest, got uint8\[1, 3, 3\]"),
        (
            {"image": image[0], "rest": rest},
            r"observation\['image'\]: expected uint8\[1, 3, 3\], got uint8\[3, 3\]; add the axis",
        ),
        ({"image": image + 0.5, "rest": rest}, r"\['image'\]: expected uint8.*, got float64"),
        (
            {"image": image, "rest": rest[:1]},
            r"\['rest'\]: expected a tuple of 2, got a tuple of 1",
        ),
        ({"image": image, "rest": rest[::-1]}, r"\['rest'\]\[0\]: expected float32\[1\], got"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(_leaves_like(spec, wrong, "observation"))


def test_export_of_no_run_ends_with_2(tmp_path, capsys):
    assert export(_parser().parse_args([str(tmp_path)])) == EXIT_CONFIG
    assert "expected a run directory" in capsys.readouterr().err


def test_a_file_of_another_origin_is_not_replaced(run_of, tmp_path, capsys):
    own = tmp_path / "policy.py"
    own.write_text("mine = True")
    options = _parser().parse_args([str(run_of("impala")), "-o", str(tmp_path)])
    assert export(options) == EXIT_CONFIG
    assert f"{own} would be replaced, and is not of an earlier export" in capsys.readouterr().err
    assert own.read_text() == "mine = True" and list(tmp_path.iterdir()) == [own]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--platforms", "cpu,gpu", "(known: cpu, cuda, rocm, tpu)"),
        ("--platforms", "", "there is no platform ''"),
        ("--num-envs", "0", "expected an integer of at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(flag, value, message, capsys):
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(["run", flag, value])
    assert ended.value.code == EXIT_CONFIG
    assert message in capsys.readouterr().err


def test_a_row_for_every_player_is_needed_where_groups_have_networks_of_their_own(tmp_path):
    env = EnvConfig(groups={"wolves": (0, 1), "sheep": (2,)})
    environment = types.SimpleNamespace(num_players=3)
    stored = types.SimpleNamespace(
        environment=environment, config=Config(env=env, agent=ToyConfig())
    )
    with pytest.raises(ConfigError, match=r"num_envs: expected a multiple of 3, .* got 4"):
        export_policy(stored, tmp_path, num_envs=4, greedy=True, seed=0, platforms=["cpu"])
