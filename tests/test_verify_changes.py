"""A run of a shipped config is repeated with one known thing changed, which is found."""

import json
import os
import re
import shutil

import pytest

import sebulba_agents
from sebulba.process import EXIT_DONE, EXIT_OTHER_RESULT, EXIT_ROUNDING
from sebulba.storage.checksums import checksums_of
from tests.packages import make_package
from tests.subprocesses import ROOT, environment, run_python

pytestmark = pytest.mark.slow

# Ten learner cycles of each agent; those with a replay begin to learn within them.
CONFIGS = {
    "a2c_cartpole": (),
    "ddqn_bandit": ("--agent.min-replay-rows=64",),
    "gumbel_muzero_catch": ("--agent.min-replay-rows=128",),
    "impala_catch": (),
    "pg_cartpole_episodes": (),
    "ppo_catch_pixels": (),
    "ppo_continuous_bandit": (),
    "pqn_recall": (),
    "r2d2_recall": ("--agent.min-replay-rows=384",),
    "sac_bandit": ("--agent.min-replay-rows=64",),
}
BOUNDARY = 16 * 20 * 6  # env steps, after some of which learner cycle 6 or 7 ends


def train(path, config, *flags):
    trained = run_python(
        *("-m", "sebulba.train", config, "--run.total-learner-cycles=10", *flags),
        *("--run.stop-at-return=null", "--run-dir", path),
    )
    assert trained.returncode == 0, trained.stderr
    return path


def verify(path, *flags, before=(), **variables):
    """Repeats a run in a process that finds modules in `before` first; returns code and output."""
    search = os.pathsep.join(map(str, [*before, ROOT, ROOT / "agents"]))
    again = run_python(
        *("-m", "sebulba.verify", path, *flags),
        variables=environment(**variables) | {"PYTHONPATH": search},
        cwd=path.parent,
    )
    return again.returncode, again.stdout + again.stderr


@pytest.mark.parametrize("config", CONFIGS)
def test_a_shipped_config_gives_the_same_bits_again(config, tmp_path):
    path = train(tmp_path / "run", config, *CONFIGS[config])
    first, *_, last = checksums_of(path)
    # An agent without a baseline has a value network that it does not train.
    learned = [name for name, leaf in first.leaves.items() if leaf.norm]
    assert any(last.leaves[name] != first.leaves[name] for name in learned)
    code, out = verify(path)
    assert code == EXIT_DONE, out
    assert "the same bits up to learner cycle 10" in out


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """Returns a run whose learning rate changes within its learner cycles."""
    schedule = f"{{schedule: piecewise, values: [1e-3, 2e-3], boundaries: [{BOUNDARY}]}}"
    path = tmp_path_factory.mktemp("runs") / "run"
    return train(path, "impala_catch", f"--agent.learning-rate={schedule}")


def leaves_of(out):
    (line,) = re.findall(r"first other bits after learner cycle (\d+).*?: (\d+) of \d+ leaves", out)
    return tuple(map(int, line))


def test_a_line_of_a_loss_that_is_changed_by_a_millionth_is_found_in_the_first_update(
    catch, tmp_path
):
    changed = tmp_path / "agents" / "sebulba_agents"
    shutil.copytree(os.path.dirname(sebulba_agents.__file__), changed)
    text = (changed / "impala.py").read_text()
    old = "policy_loss + config.baseline_cost * value_loss"
    assert text.count(old) == 1
    new = "policy_loss + 1.000001 * config.baseline_cost * value_loss"
    (changed / "impala.py").write_text(text.replace(old, new))
    code, out = verify(catch, before=[changed.parent])
    assert code == EXIT_OTHER_RESULT, out
    assert "other code: sebulba_agents: there " in out
    assert "another result from learner cycle 1 on" in out
    cycle, num_leaves = leaves_of(out)
    assert (cycle, num_leaves > 1) == (1, True)
    # Clipping by the norm of all gradients scales those of the policy, too.
    assert "updates parted first" in out and "most of all opt_state." in out


def test_a_change_that_begins_later_is_found_at_its_learner_cycle(catch, tmp_path):
    shutil.copytree(catch, tmp_path / "run")
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert text.count("[0.001, 0.002]") == 1
    text = text.replace("[0.001, 0.002]", "[0.001, 0.00200001]")
    (tmp_path / "run" / "config.yaml").write_text(text)
    code, out = verify(tmp_path / "run")
    assert code == EXIT_OTHER_RESULT, out
    assert "after learner cycle 10 (the row before, of cycle 5, is equal)" in out


def test_another_version_that_changes_nothing_is_named_beside_the_same_bits(catch, tmp_path):
    make_package(tmp_path, "optax", modules={}, entry_points={})
    code, out = verify(catch, before=[tmp_path])
    assert code == EXIT_DONE, out
    assert re.search(r"other versions: optax: there \S+, here 1\.5\n", out)


def test_another_version_that_computes_otherwise_is_named_as_the_cause(catch, tmp_path):
    source = (
        "import functools, optax\n"
        "optax.adam = functools.partial(lambda adam, rate, **rest:"
        " adam(rate * (1 + 1e-6), **rest), optax.adam)\n"
    )
    make_package(tmp_path, "optax", modules={"sitecustomize": source}, entry_points={})
    code, out = verify(catch, before=[tmp_path])
    assert code == EXIT_ROUNDING, out
    assert "consistent with rounding up to learner cycle 10: other optax, and" in out
    assert leaves_of(out)[0] == 1 and "updates parted first" in out


def test_another_flag_is_named_as_the_cause(catch):
    process = json.loads((catch / "run.json").read_text())
    flags = f"{process['xla_flags']} --xla_cpu_max_isa=SSE4_2"
    settings = {name.upper(): str(value) for name, value in process["jax"].items() if value}
    settings["PJRT_NPROC"] = str(process["threads"])
    code, out = verify(catch, "--here", **settings, XLA_FLAGS=flags)
    assert code == EXIT_ROUNDING, out
    assert "other flags: XLA_FLAGS: there none, here --xla_cpu_max_isa=SSE4_2" in out
    assert "consistent with rounding up to learner cycle 10: other XLA_FLAGS, and" in out
