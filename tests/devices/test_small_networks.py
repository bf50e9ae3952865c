"""The hint to act on the CPU with a small network."""

import dataclasses

import numpy as np
import pytest

from sebulba.config import DevicesConfig
from sebulba.devices.small_networks import describe_small_network
from sebulba.run import opening_lines, preparation, training
from tests.evaluation.runs import tiny_config
from tests.storage.lines import Lines


@dataclasses.dataclass(frozen=True)
class Device:
    platform: str


SMALL = {"dense": np.zeros((64, 64)), "bias": np.zeros(64)}
GPU = [Device("gpu")]


def test_a_small_network_over_environments_on_the_host_is_told():
    line = describe_small_network(SMALL, actor_devices=GPU, num_envs=16, is_on_host=True)
    assert line is not None and "\n" not in line
    assert "4,160 parameters × 16 environments" in line and "waits for the gpu" in line
    assert line.endswith("--devices.actor cpu")
    tpu = describe_small_network(SMALL, actor_devices=[Device("tpu")], num_envs=16, is_on_host=True)
    assert tpu is not None and "the tpu" in tpu


@pytest.mark.parametrize(
    "how",
    [
        {"actor_devices": [Device("cpu")]},
        {"is_on_host": False},
        {"num_envs": 512},
        {"networks": {**SMALL, "convolution": np.zeros((3, 3, 4, 16))}},
        {"networks": {"dense": np.zeros((512, 512))}},
    ],
)
def test_a_network_that_an_accelerator_may_be_faster_with_is_not_told(how):
    usual = {"networks": SMALL, "actor_devices": GPU, "num_envs": 16, "is_on_host": True}
    options = {**usual, **how}
    assert describe_small_network(options.pop("networks"), **options) is None


@pytest.mark.parametrize(
    ("name", "actor", "is_on_host"),
    [("impala", None, False), ("cartpole", None, True), ("cartpole", (0,), None)],
)
def test_a_run_asks_unless_the_user_has_chosen_the_devices(
    name, actor, is_on_host, monkeypatch, tmp_path
):
    asked = []

    def describe(networks, **options):
        asked.append(options["is_on_host"])
        return "hint: small"

    monkeypatch.setattr(opening_lines, "describe_small_network", describe)
    monkeypatch.setattr(preparation, "make_observers", lambda *_, **__: 1 / 0)
    config = tiny_config(name, tmp_path / "run")
    config = dataclasses.replace(
        config,
        devices=DevicesConfig(actor=actor),
        actor=dataclasses.replace(config.actor, cycle="stepped" if is_on_host else "auto"),
    )
    display = Lines()
    with pytest.raises(ZeroDivisionError):
        training.train(config, display=display)
    assert asked == ([] if is_on_host is None else [is_on_host])
    assert ("hint: small" in display.lines) == bool(asked)
