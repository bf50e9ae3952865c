"""The planner on a real ring."""

import json

import pytest

from sebulba.config.loading import load_config
from sebulba.tools.plan.command import plan


@pytest.mark.slow
def test_plan_measures_proposes_and_verifies(tmp_path, capsys):
    config = load_config(
        "configs/impala_bandit.yaml", ["--devices.actor=[0]", "--devices.learner=[0]"]
    )
    json_path = tmp_path / "plan.json"
    assert plan(config, seconds=0.02, verify=True, json_path=json_path) == 0
    printed = capsys.readouterr().out
    result = json.loads(json_path.read_text())
    assert set(result["measured"]) == {"given", "proposed"}
    assert all(rate > 0 for rate in result["measured"].values())
    given = result["given"]["setting"]
    assert (given["num_envs"], given["threads_per_device"]) == (
        config.actor.num_envs,
        config.actor.threads_per_device,
    )
    assert result["proposed"]["prediction"]["env_steps_per_s"] >= (
        0.98 * result["given"]["prediction"]["env_steps_per_s"]
    )
    assert "Flags for the proposed settings: --actor.threads-per-device" in printed
