"""The tables of Craftax-Classic; training needs the extra craftax and is not tested here."""

import json

import numpy as np
import pytest

import sebulba
from benchmarks import craftax as benchmark


def _run(seed, **achievements):
    return {
        "seed": seed,
        "return_in_training": 2.0,
        "return": 2.2,
        "achievements": achievements,
        "wall_time_s": 10.0,
        "commit": "abc",
    }


def test_the_score_is_the_geometric_mean_of_percentages_plus_one():
    # Hafner 2021, arXiv 2109.06780, equation 1.
    expected = np.exp((np.log(101.0) + np.log(1.0)) / 2) - 1
    assert benchmark.score({"collect_wood": 1.0, "eat_plant": 0.0}) == pytest.approx(expected)


def test_the_tables_have_each_seed_and_the_mean_share_of_each_achievement_in_order():
    records = {
        "ppo": [_run(301, eat_cow=0.5, wake_up=1.0), _run(302, eat_cow=0.7, wake_up=0.8)],
        "ppo_lstm": [_run(301, eat_cow=0.0, wake_up=0.5)],
    }
    lines = benchmark.tables(records).splitlines()
    assert lines[2].startswith("| `ppo` | 301, 302 | 2.00, 2.00 | 2.20, 2.20 | 10.0% |")
    assert "| wake up | 90.0% | 50.0% |" in lines
    assert lines.index("| wake up | 90.0% | 50.0% |") < lines.index("| eat cow | 60.0% | 0.0% |")


def test_a_page_gets_the_tables_of_the_records(tmp_path, monkeypatch):
    page, records = tmp_path / "page.md", tmp_path / "records.json"
    page.write_text(f"before\n{benchmark.BEGIN}\nold\n{benchmark.END}\nafter\n")
    records.write_text(json.dumps({"ppo": [_run(301, eat_cow=0.5)]}))
    monkeypatch.setattr("sys.argv", ["craftax", "--json", str(records), "--page", str(page)])
    benchmark.main()
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| eat cow | 50.0% |" in text


@pytest.mark.parametrize("agent", benchmark.AGENTS)
def test_each_agent_is_a_valid_config(agent):
    config, settings = benchmark.AGENTS[agent]
    assert sebulba.load_config(config, settings | {"env.id": benchmark.ID}).env.id == benchmark.ID
