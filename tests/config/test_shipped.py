"""The list of shipped configs, and a copy of one."""

import pytest

from sebulba.config.shipped import copy_config, describe, shipped_configs
from sebulba.errors import ConfigError
from tests.subprocesses import ROOT


def test_every_config_of_the_checkout_is_shipped():
    assert set(shipped_configs().values()) == set((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", shipped_configs().values(), ids=lambda path: path.stem)
def test_every_config_has_a_description_of_one_line(path):
    text = describe(path)
    assert 10 < len(text) < 105
    assert text.count("(") == text.count(")")
    assert not text.endswith(" al")


def test_a_copy_is_the_config_and_replaces_no_file(tmp_path):
    target = copy_config("ppo_cartpole", tmp_path)
    assert target == tmp_path / "ppo_cartpole.yaml"
    assert target.read_bytes() == shipped_configs()["ppo_cartpole"].read_bytes()
    target.write_text("seed: 3")
    with pytest.raises(ConfigError, match="expected no such file"):
        copy_config("ppo_cartpole", tmp_path)
    assert target.read_text() == "seed: 3"
    with pytest.raises(ConfigError, match="did you mean ppo_cartpole"):
        copy_config("ppo_cartpol", tmp_path)
