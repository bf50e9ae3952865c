"""How the result of a run shows itself in a notebook."""

import importlib.util
import re

import pytest

pytest.importorskip("PIL")
pytest.importorskip("matplotlib")

from PIL import Image

import sebulba
from tests.run.runs import make_config


def test_results_show_themselves_in_a_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sebulba.train(make_config(tmp_path / "run"))
    assert repr(result).endswith("run_dir='run')"), "relative to the working directory"
    page = result._repr_html_()
    assert "jax Catch-v0: done" in page and f"{result.env_steps:,}" in page
    assert "src='data:image/png" in page

    (panel,) = result.plot("loss").axes
    assert panel.lines[0].get_ydata().tolist() == [row["loss"] for row in result.rows]
    figure = result.plot(["loss", "grad_norm"])
    assert figure._repr_png_().startswith(b"\x89PNG"), "IPython shows it"
    with pytest.raises(sebulba.ConfigError, match=r"expected a column of metrics.jsonl, got los"):
        result.plot("los")

    video = result.video(episodes=2)
    assert repr(video) == "Video('run/videos/result.gif')"
    assert video._repr_html_().startswith("<img")
    with Image.open(video) as image:
        assert image.n_frames > 10  # an episode has 10

    evaluated = sebulba.evaluate(result.policy, episodes=3, parallel_envs=1)
    mean = re.escape(f"{evaluated.return_mean:.5g}")
    expected = rf"EvaluationResult\(return_mean={mean}, .*, episodes=3, unfinished=0\)"
    assert re.fullmatch(expected, repr(evaluated))

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page = result._repr_html_()
    assert "<img" not in page and "Catch-v0" in page
    with pytest.raises(sebulba.ConfigError, match=r"matplotlib is not .* 'sebulba\[plot\]'"):
        result.plot()
