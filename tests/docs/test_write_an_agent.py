"""The agent in docs/write_an_agent.md learns and passes every check."""

import dataclasses
import json
import pathlib
import sys

import pytest

from sebulba.check.suite import check
from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from sebulba.run import training
from tests.docs.blocks import ROOT, blocks_of


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The config of the page, with its agent in a module that can be imported."""
    for block in blocks_of(ROOT / "docs" / "write_an_agent.md"):
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    config = load_config(
        str(tmp_path / "my_agent.yaml"), ["--run-dir", str(tmp_path / "run"), "--seed", "1010"]
    )
    yield dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    sys.modules.pop("my_agent", None)


def test_the_agent_of_the_page_learns_its_task(config):
    """A random policy has a mean return of about 22."""
    assert training.train_to_exit_code(config) == 0
    summary = json.loads((pathlib.Path(config.run_dir) / "summary.json").read_text())
    assert summary["best_episode_return_mean"] >= 195


@pytest.mark.slow
def test_the_agent_of_the_page_passes_every_check(config):
    assert [each for each in check(config).results if each.status == "fail"] == []
