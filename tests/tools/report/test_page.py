"""The contents of the page, and that it is self-contained."""

import dataclasses
import json
import re

import pytest

pytest.importorskip("matplotlib")

from sebulba.tools.report.groups import group_runs
from sebulba.tools.report.page import page
from sebulba.tools.report.runs import read_runs
from sebulba_agents.config import ImpalaConfig
from tests.tools.report.directories import make_run

EVIL = "<script>alert(1)</script>"


def page_of(*paths):
    return page(group_runs(read_runs(paths)))


def text_of(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def make_evaluation(return_mean):
    return {
        "episodes": 20,
        "return_mean": return_mean,
        "return_std": 0.5,
        "return_min": -1,
        "return_max": 7,
        "return_iqm": 1.25,
        "return_iqm_low": 1,
        "return_iqm_high": 1.5,
        "length_mean": 9.5,
    }


def test_page_has_config_machine_speed_and_the_command_to_resume(tmp_path):
    agent = ImpalaConfig(learning_rate=0.125)
    text = text_of(page_of(make_run(tmp_path / "run", seed=3, agent=agent)))
    for part in (
        "impala Catch-v0, seed 3",
        "agent.learning_rate 0.125",  # and its default
        "env.id Catch-v0 CartPole-v1",
        "status done",
        "train.py &#x27;my config.yaml&#x27;",
        "devices cpu: cpu",
        "jax 0.10.2",
        "1 h 2 min",
        "12,346",
        "bottleneck, and what to change the actors bind: more actor.num_envs",
        "actor act 75.0%",
        "actor 0 410 0 0 400 10",
        "python -m sebulba.train x --resume latest",
    ):
        assert part in text
    assert "actor.trajectory_length" not in text  # has its default
    assert "Evaluation" not in text
    assert "Video" not in text


def test_page_holds_the_curves_itself(tmp_path):
    html = page_of(make_run(tmp_path / "run"))
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', html)
    assert sources == ["data:image/svg+xml;base64,PD94"]
    assert "http:" not in html and "https:" not in html
    assert "<script" not in html


def test_page_shows_evaluations_and_videos(tmp_path):
    path = make_run(tmp_path / "run")
    rows = [make_evaluation(i) | {"env_steps": 100 * i} for i in (1, 2)]
    rows[1] |= {"return_iqm_low": None, "protocol": {"settings": {"frame_skip": 4}}}
    (path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    protocol = {"greedy": True, "env_steps_trained": 1234}
    evaluation = {"statistics": make_evaluation(3), "episodes_unfinished": 5, "protocol": protocol}
    (path / "evaluation.json").write_text(json.dumps(evaluation))
    (path / "episode.gif").write_bytes(b"GIF89a")
    html = page_of(path)
    text = text_of(html)
    assert "100 20 – 1 0.5 -1 7 1.25 [1, 1.5] 9.5" in text
    assert "200 20 – 2 0.5 -1 7 1.25 [–, 1.5] 9.5" in text
    assert "settings.frame_skip 4" in text
    assert "evaluation.json" in text and "1,234 20 5 3 0.5 -1 7 1.25 [1, 1.5] 9.5" in text
    assert "greedy True" in text
    assert 'src="data:image/gif;base64,R0lGODlh" alt="episode.gif"' in html


def test_page_escapes_all_text_of_a_run(tmp_path):
    path = make_run(tmp_path / EVIL.replace("/", "|"), env_id=EVIL, run_dir=EVIL)
    (path / "evaluation.json").write_text(json.dumps({"protocol": {EVIL: EVIL}}))
    for name in ("summary.json", "run.json"):
        values = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(_with_evil_texts(values)))
    html = page_of(path)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 10


def test_page_of_a_running_run_shows_its_latest_row(tmp_path):
    html = page_of(make_run(tmp_path / "run", status=None, returns=(1.0, 2.0)))
    assert '<span class="bad">running, or killed before it wrote a summary</span>' in html
    assert "200 4.0 s 50 2 –" in text_of(html)


@pytest.mark.parametrize("returns", [(), (None,)])
def test_page_of_a_run_with_little_or_no_data_is_complete(tmp_path, returns):
    html = page_of(make_run(tmp_path / "run", returns=returns, status=None))
    assert html.endswith("</html>\n")


def test_page_of_an_agent_that_is_not_installed_has_no_defaults(tmp_path):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        name: str = "elsewhere:Agent"

    text = text_of(page_of(make_run(tmp_path / "run", agent=Settings())))
    assert "Defaults unknown: there is no module" in text


def test_page_folds_the_runs_of_several_seeds(tmp_path):
    paths = [make_run(tmp_path / f"{seed}", seed=seed) for seed in (0, 1)]
    html = page_of(*paths)
    assert "impala Catch-v0, seeds 0, 1" in text_of(html)
    assert re.findall(r"<summary>(seed \d: done)</summary>", html) == [
        "seed 0: done",
        "seed 1: done",
    ]


def _with_evil_texts(value):
    if isinstance(value, dict):
        return {key: _with_evil_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_evil_texts(each) for each in value]
    return EVIL if isinstance(value, str) else value
