"""The agents, networks and cores in docs/tutorials learn their tasks and pass every check."""

import contextlib
import dataclasses
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.check.suite import check
from sebulba.config import DevicesConfig
from sebulba.config.agents import agent_factory
from sebulba.config.loading import load_config
from sebulba.envs import make_environment
from sebulba.run import training
from sebulba.toolkit.cores import core_class
from tests.docs.blocks import ROOT, blocks_of
from tests.on_policy import make_run_spec

GRU = ["--agent.core", "my_core:GRU"]
PENALISED = ["--agent.name", "my_ppo:penalised_ppo"]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return the config of a page, with the page's modules where they can be imported."""
    modules = []
    monkeypatch.syspath_prepend(tmp_path)

    def load(page, name, *arguments):
        for block in blocks_of(ROOT / "docs" / "tutorials" / f"{page}.md"):
            if block.file_name is not None:
                (tmp_path / block.file_name).write_text(block.text)
                modules.append(block.file_name.removesuffix(".py"))
        config = load_config(
            str(tmp_path / name), ["--run-dir", str(tmp_path / "run"), "--seed", "1820", *arguments]
        )
        return dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))

    yield load
    for module in modules:
        sys.modules.pop(module, None)


def best_return(config):
    assert training.train_to_exit_code(config) == 0
    summary = json.loads((pathlib.Path(config.run_dir) / "summary.json").read_text())
    return summary["best_episode_return_mean"]


@pytest.mark.parametrize("name", ["my_wrapped.yaml", "my_wrapped_task.yaml"])
def test_the_wrappers_of_the_page_fit_together(name, load):
    with contextlib.closing(
        make_environment(load("wrappers", name).env, num_envs=2, seed=0)
    ) as environment:
        shapes = jax.tree.map(lambda leaf: leaf.shape[1:], environment.reset().observation)
    assert shapes in ((3, 2), {"task": (2, 50), "steps": (1,)})


@pytest.mark.parametrize(
    ("page", "name", "arguments"),
    [
        ("replay", "qr_dqn.yaml", []),
        ("recurrence", "recall.yaml", GRU),
        ("recurrence", "recall.yaml", PENALISED),
    ],
)
def test_the_agent_of_a_page_keeps_the_protocol(page, name, arguments, load):
    config = load(page, name, *arguments)
    run_spec = make_run_spec()
    validate_agent(agent_factory(config.agent.name)(config.agent, run_spec), run_spec)


def test_the_core_of_the_page_forgets_at_a_reset_and_unrolls_as_it_steps(load):
    load("recurrence", "recall.yaml")
    core = core_class("my_core:GRU")(5)
    inputs = jax.random.normal(jax.random.key(0), (4, 2, 3))
    is_first = jnp.zeros((4, 2), bool).at[2, 0].set(True)
    state = core.initial_state(2) + 0.5
    params = jax.jit(core.init)(jax.random.key(1), inputs, is_first, state)
    apply = jax.jit(core.apply)
    outputs, _ = apply(params, inputs, is_first, state)
    steps = state
    for t in range(4):
        row, steps = apply(params, inputs[t : t + 1], is_first[t : t + 1], steps)
        np.testing.assert_allclose(row[0], outputs[t], rtol=1e-5, atol=1e-6)
    fresh, _ = apply(params, inputs[2:], is_first[2:], core.initial_state(2))
    np.testing.assert_allclose(fresh[:, 0], outputs[2:, 0], rtol=1e-5, atol=1e-6)
    assert (fresh[:, 1] != outputs[2:, 1]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "name", "arguments", "goal"),
    [
        ("replay", "qr_dqn.yaml", [], 450),
        ("recurrence", "recall.yaml", [], 0.9),
        ("recurrence", "recall.yaml", GRU, 0.9),
        ("recurrence", "recall.yaml", [*PENALISED, *GRU], 0.9),
        ("own_network", "seeing.yaml", [], 9),
        ("own_network", "seeing.yaml", ["--agent.network", "small"], 9),
        ("own_network", "seeing.yaml", ["--agent.network", "my_nnx_network:FromNNX"], 9),
        ("../search", "planner.yaml", [], 0.95),
    ],
)
def test_the_agent_of_a_page_learns_its_task(page, name, arguments, goal, load):
    assert best_return(load(page, name, *arguments)) >= goal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "name", "arguments"),
    [
        ("replay", "qr_dqn.yaml", []),
        ("recurrence", "recall.yaml", [*PENALISED, *GRU]),
        ("own_network", "seeing.yaml", []),
    ],
)
def test_the_agent_of_a_page_passes_every_check(page, name, arguments, load):
    failed = [each for each in check(load(page, name, *arguments)).results if each.status == "fail"]
    assert failed == []
