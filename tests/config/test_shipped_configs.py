"""The environment and the agent of every shipped config fit each other."""

import pathlib

import pytest

from sebulba.agent_check import validate_agent
from sebulba.config.agents import agent_factory
from sebulba.config.loading import load_config
from sebulba.config.schema import flat_config
from sebulba.envs import make_environment
from sebulba.envs.task_defaults import with_task_defaults
from sebulba.types import RunSpec

CONFIGS = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.yaml"))


def is_atari(path):
    """Return whether a config is for EnvPool's Atari, whose networks take long to trace."""
    name = path.stem
    return name.endswith(("_pong", "_breakout", "_cpu")) and "minatar" not in name


@pytest.mark.usefixtures("lenient_jax")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * is_atari(path))
        for path in CONFIGS
    ],
)
def test_environment_and_agent_of_a_config_fit_each_other(path):
    config = load_config(str(path))
    if config.env.suite in ("craftax", "gymnax", "jaxmarl", "jumanji", "pgx"):
        pytest.importorskip(config.env.suite)
    if config.env.suite == "pettingzoo":
        pytest.importorskip("mpe2")
    if config.agent.name == "gumbel_muzero":
        pytest.importorskip("mctx")
    environment = make_environment(config.env, num_envs=1, seed=0)
    run_spec = RunSpec(
        environment=environment.spec,
        num_envs=config.actor.num_envs,
        num_actors=config.actor.threads_per_device,
        num_learner_devices=1,
        trajectory_length=config.actor.trajectory_length,
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
        total_env_steps=config.run.total_env_steps,
    )
    environment.close()
    validate_agent(agent_factory(config.agent.name)(config.agent, run_spec), run_spec)
    # Its numbers are its own: of what suits the task, the network alone is not in the file.
    resolved = with_task_defaults(config).config
    changed = {
        key: value
        for key, value in flat_config(resolved).items()
        if value != flat_config(config)[key]
    }
    if hasattr(config.agent, "torso_for"):
        changed.pop("agent.network", None)
        assert resolved.agent.network == config.agent.torso_for(environment.spec).network
    assert changed == {}


def test_shipped_atari_configs_have_the_papers_batch_and_summed_loss():
    for name in ("impala_pong", "impala_breakout"):
        config = load_config(name)
        trajectories = config.actor.num_envs * config.learner.trajectories_per_cycle
        assert (trajectories, config.actor.trajectory_length) == (32, 20)
        assert config.agent.loss_reduction == "sum"
        assert config.env.options == {"episodic_life": True}
