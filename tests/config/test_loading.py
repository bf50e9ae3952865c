"""Loading configs: files, flags, and their errors."""

import dataclasses
import sys
import types

import pytest

from sebulba.config import ActorConfig, Config, DevicesConfig, LearnerConfig
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.loading import load_config
from sebulba.config.schema import key_types
from sebulba.config.unknown_keys import OTHER_NAMES
from sebulba.toolkit.schedules import Schedule
from sebulba_agents import AGENTS
from sebulba_agents.config import ImpalaConfig
from sebulba_agents.replay_config import R2D2Config
from tests.config.errors import error_of


def test_flags_replace_values_of_the_file_which_replace_defaults(write):
    path = write("actor:\n  num_envs: 8\n  trajectory_length: 5\nseed: 1\n")
    config = load_config(path, ["--actor.num-envs", "32", "--run-dir=runs/x"])
    assert config.actor == ActorConfig(num_envs=32, trajectory_length=5)
    assert (config.seed, config.run_dir) == (1, "runs/x")
    assert config.learner == LearnerConfig(policy_lag=1)
    assert config.agent == ImpalaConfig()


@pytest.mark.parametrize(
    ("text", "lag"),
    [
        ("agent: {name: impala}", 1),
        ("agent: {name: a2c}", 0),
        ("agent: {name: impala}\nrun: {mode: anakin}", 0),
        ("agent: {name: ppo}", 0),
        ("agent: {name: ppo}\nlearner: {policy_lag: 1}", 1),
        ("agent: {name: a2c}\nlearner: {policy_lag: 2, allow_uncorrected_lag: true}", 2),
        ("agent: {name: impala}\nlearner: {policy_lag: null}", None),
    ],
)
def test_the_policy_lag_is_exact_and_what_the_agent_corrects_for_unless_it_is_set(write, text, lag):
    config = load_config(write(text))
    assert config.learner.policy_lag == config.policy_lag == lag


@pytest.mark.parametrize("text", ["", "actor:\n", "# nothing\n"])
def test_empty_file_or_section_has_the_defaults(write, text):
    assert load_config(write(text)) == load_config(None) == Config(agent=ImpalaConfig())


@pytest.mark.parametrize(
    ("arguments", "key", "expected"),
    [
        (["--actor.num-envs", "32"], "actor.num_envs", 32),
        (["--actor.num_envs", "32"], "actor.num_envs", 32),
        (["--actor.num-envs=8", "--actor.num_envs", "9"], "actor.num_envs", 9),
        (["--run.total-env-steps", "1e6"], "run.total_env_steps", 1_000_000),
        (["--run.total-env-steps", "1_000"], "run.total_env_steps", 1_000),
        (["--run.stop-at-return", "-21"], "run.stop_at_return", -21.0),
        (["--learner.policy-lag", "null"], "learner.policy_lag", None),
        (["--devices.learner", "[0, 1]"], "devices.learner", (0, 1)),
        (["--agent.learning-rate", "1e-4"], "agent.learning_rate", 1e-4),
        (
            ["--agent.learning-rate", "{schedule: linear, start: 1e-3, end: 0, env_steps: 1e6}"],
            "agent.learning_rate",
            Schedule(schedule="linear", start=1e-3, end=0.0, env_steps=1_000_000),
        ),
        (["--agent.lambda_", "0.9"], "agent.lambda_", 0.9),
        (["--agent.lambda", "0.9"], "agent.lambda_", 0.9),
        (["--run-dir", "2024"], "run_dir", "2024"),
        (["--run-dir", "{a: b"], "run_dir", "{a: b"),
        (["--run-dir", "null"], "run_dir", None),
        (["--env.id", "no"], "env.id", "no"),
    ],
)
def test_flags_are_read_by_the_declared_type(write, arguments, key, expected):
    value = load_config(write("learner: {policy_lag: 3}"), arguments)
    for name in key.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


def test_options_flag_replaces_the_mapping_of_the_file(write):
    path = write("env: {options: {frame_skip: 4, episodic_life: true}}")
    config = load_config(path, ["--env.options", "{max_episode_steps: 200, rate: 1e-2}"])
    assert config.env.options == {"max_episode_steps": 200, "rate": 0.01}


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("devices: auto", [], DevicesConfig()),
        ("devices: {actor: [0], learner: [1]}", ["--devices", "auto"], DevicesConfig()),
        ("devices: auto", ["--devices.actor", "[1]"], DevicesConfig(actor=(1,))),
        ("devices:", ["--devices=auto"], DevicesConfig()),
    ],
)
def test_auto_may_replace_the_section_devices(write, text, arguments, expected):
    assert load_config(write(text), arguments).devices == expected


@pytest.mark.parametrize(
    ("text", "arguments", "mode"),
    [
        ("distributed: off", [], "off"),
        ("distributed: auto", [], "auto"),
        ("distributed: auto", ["--distributed", "off"], "off"),
        ("distributed: {mode: auto}", ["--distributed=off"], "off"),
        ("", [], "off"),
        ("distributed: {coordinator: 'a:1', num_processes: 2, process_id: 0}", [], "manual"),
    ],
)
def test_a_word_or_a_coordinator_sets_the_distributed_mode(write, text, arguments, mode):
    assert load_config(write(text), arguments).distributed.effective_mode == mode


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            "distributed: 1",
            [],
            "x.yaml:1: distributed: expected off or auto or a mapping, {name: value, ...}, got 1",
        ),
        (
            "seed: 1\ndevices: all",
            [],
            "x.yaml:2: devices: expected auto or a mapping, {name: value, ...}, got all",
        ),
        (
            "devices: [0, 1]",
            [],
            "x.yaml:1: devices: expected auto or a mapping, {name: value, ...}, got [0, 1]",
        ),
        (
            "actor: auto",
            [],
            "x.yaml:1: actor: expected a mapping, {name: value, ...}, got auto",
        ),
        (
            "",
            ["--devices", "2"],
            "--devices: expected auto, got '2'. Or set single keys: --devices.KEY",
        ),
        (
            "",
            ["--devices", "auto", "--devices.actor", "[0]"],
            "`--devices auto` cannot be combined with `--devices.actor`",
        ),
    ],
)
def test_another_value_of_a_section_is_an_error(write, text, arguments, message):
    assert error_of(write(text), arguments) == message


@pytest.mark.parametrize("text", ["1e-4", "0.0001", "1.0e-4", "1E-04"])
def test_float_accepts_every_spelling(write, text):
    assert load_config(write(f"agent: {{learning_rate: {text}}}")).agent.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1e7, 1e-4, -.5, 1_000, .5e3]", [1e7, 1e-4, -0.5, 1000, 500.0]),
        (
            "[no, yes, off, 1:30, 010, 2024-01-01]",
            ["no", "yes", "off", "1:30", "010", "2024-01-01"],
        ),
        ("[true, FALSE, ~, null, '1e-4', '7']", [True, False, None, None, "1e-4", "7"]),
    ],
)
def test_plain_scalars_of_options_have_the_types_of_yaml_1_2(write, text, expected):
    value = load_config(write(f"env: {{options: {{x: {text}}}}}")).env.options["x"]
    assert [(type(x), x) for x in value] == [(type(x), x) for x in expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "actor:\n  num_env: 3\n",
            "x.yaml:2: actor.num_env: unknown key; did you mean num_envs? (known: "
            "threads_per_device, num_envs, trajectory_length, rollout, cycle, on_env_error, "
            "max_env_restarts, env_timeout_s, remote, remote_cpus, remote_gpus, remote_timeout_s, "
            "remote_max_replay)",
        ),
        (
            "learner:\n  num_envs: 3\n",
            "x.yaml:2: learner.num_envs: unknown key; did you mean actor.num_envs?",
        ),
        ("\nnum_envs: 3\n", "x.yaml:2: num_envs: unknown key; did you mean actor.num_envs?"),
        (
            "actr:\n  num_envs: 3\n",
            "x.yaml:1: actr: unknown key; did you mean actor? "
            "(known: env, devices, actor, learner, run, checkpoint, evaluation, distributed, "
            "agent, seed, run_dir, init_from, init_mismatch, resume)",
        ),
        (
            "seed: 0\nactor:\n  num_envs: many\n",
            "x.yaml:3: actor.num_envs: expected int ≥ 1, got many (str)",
        ),
        ("actor:\n  num_envs: 0\n", "x.yaml:2: actor.num_envs: expected int ≥ 1, got 0"),
        ("seed: 1\nactor: {}\nseed: 2\n", "x.yaml:3: seed: duplicate key, first in line 1"),
        (
            "run:\n  mode: serial\n  mode: serial\n",
            "x.yaml:3: mode: duplicate key, first in line 2",
        ),
        ("env:\n  options:\n    a: 1\n    a: 1\n", "x.yaml:4: a: duplicate key, first in line 3"),
        ("? [1]\n: 2\n", "x.yaml:1: expected a name as the key"),
        ("- 1\n", "x.yaml: expected a mapping, {name: value, ...}, got [1]"),
        ("seed: 1\nactor: 3\n", "x.yaml:2: actor: expected a mapping, {name: value, ...}, got 3"),
        ("actor: [\n", "x.yaml:2: expected the node content, but found '<stream end>'"),
        ("seed: 1\n---\nseed: 2\n", "x.yaml:2: but found another document"),
        ("seed: !!python/name:os.system\n", "x.yaml:1: tags are not supported, got tag"),
        ("agent:\n  name: 3\n", "x.yaml:2: agent.name: expected str, got 3 (int)"),
        (
            "agent: {learning_rate: {schedule: linear, start: 1e-3}}",
            "x.yaml:1: agent.learning_rate: expected a value of `end` with schedule: linear",
        ),
        (
            "agent: {learning_rate: {schedule: linear, begin: 1e-3}}",
            "x.yaml:1: agent.learning_rate: unknown key begin; known: schedule, start",
        ),
        (
            "agent: {learning_rate: {schedule: linear, start: x}}",
            "x.yaml:1: agent.learning_rate: start: expected float | null, got x (str)",
        ),
        (
            "agent: {learning_rate: {start: 1e-3}}",
            "x.yaml:1: agent.learning_rate: expected a value of `schedule`",
        ),
        (
            "agent: {learning_rate: fast}",
            "x.yaml:1: agent.learning_rate: expected float ≥ 0 | {schedule: ..., ...}, got fast",
        ),
        (
            "learner:\n  policy_lag: 1\nagent:\n  name: a2c\n",
            "x.yaml:2: learner.policy_lag: expected 0",
        ),
        (
            "learner:\n  policy_lag: null\nagent:\n  name: policy_gradient\n",
            "x.yaml:2: learner.policy_lag: expected 0 with policy_gradient, which does not correct",
        ),
        (
            "agent:\n  name: imapla\n",
            "x.yaml:2: agent.name: unknown name imapla; did you mean impala? (known: impala, ",
        ),
        (
            "agent: {name: 'no_such_module:Agent'}",
            "x.yaml:1: agent.name: there is no module 'no_such_module'",
        ),
        (
            "agent: {name: 'sebulba_agents.config:Impala'}",
            "x.yaml:1: agent.name: sebulba_agents.config has no Impala; did you mean ImpalaConfig?",
        ),
        (
            "agent: {name: 'sebulba_agents.config:ImpalaConfig'}",
            "x.yaml:1: agent.name: sebulba_agents.config:ImpalaConfig: expected its settings to be",
        ),
    ],
)
def test_file_errors_name_file_line_and_key(write, text, message):
    assert error_of(write(text)).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--actor.num-env", "3"], "--actor.num-env: unknown flag; did you mean num_envs? (known:"),
        (["--num-envs", "3"], "--num-envs: unknown flag; did you mean --actor.num-envs?"),
        (["--sed", "3"], "--sed: unknown flag; did you mean seed? (known: env,"),
        (["--actor.num-envs", "3.5"], "--actor.num-envs: expected int ≥ 1, got 3.5 (float)"),
        (["--actor.cycle", "fusd"], "--actor.cycle: expected auto | fused | stepped, got fusd"),
        (["--env.options", "{a: "], "--env.options: expected {name: value, ...}, got '{a: ': "),
        (["--seed"], "--seed: expected a value, got none"),
        (["--seed", "--run-dir", "x"], "--seed: expected a value, got none"),
        (["--agent.name", "ipala"], "--agent.name: unknown name ipala; did you mean impala?"),
        (["--seed", "-1"], "--seed: expected int in [0, 2147483647], got -1"),
        (["seed", "3"], "seed: expected a flag, --section.field VALUE"),
    ],
)
def test_flag_errors_name_the_flag(write, arguments, message):
    assert error_of(write(""), arguments).startswith(message)


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--agent.lr", "--agent.learning-rate"),
        ("--agent.gamma", "--agent.discount"),
        ("--agent.gae-lambda", "--agent.lambda"),
        ("--agent.ent_coef", "--agent.entropy-cost"),
        ("--agent.update-epochs", "--agent.num-epochs"),
        ("--learner.lr", "--agent.learning-rate"),
        ("--gamma", "--agent.discount"),
        ("--lambda", "--agent.lambda"),
        ("--learning-rate", "--agent.learning-rate"),
        ("--total-timesteps", "--run.total-env-steps"),
        ("--num-envs", "--actor.num-envs"),
        ("--n-steps", "--actor.trajectory-length"),
        ("--steps", "--run.total-env-steps"),
        ("--log-dir", "--run-dir"),
        ("--wandb", "--run.wandb-project"),
        ("--env", "--env.id"),
    ],
)
def test_a_flag_by_the_name_of_other_libraries_suggests_ours(flag, ours):
    message = error_of(None, ["--agent.name=ppo", f"{flag}=3"])
    assert message == f"{flag.replace('_', '-')}: unknown flag; did you mean {ours}?"


def test_every_key_that_is_suggested_for_another_name_exists():
    types = [key_types(agent_config_class(name)) for name in AGENTS]
    names = {key.rpartition(".")[2] for keys in types for key in keys}
    assert set(OTHER_NAMES) <= names


def test_agent_name_selects_the_settings_of_the_section_agent(write):
    assert load_config(write("agent: {name: r2d2}")).agent == R2D2Config()
    assert load_config(None, ["--agent.name", "r2d2"]).agent == R2D2Config()
    path = write("agent:\n  name: r2d2\n  clip_rho: 1.0\n")
    assert error_of(path).startswith("x.yaml:3: agent.clip_rho: unknown key")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig:
    """Settings of an agent outside the table."""

    name: str
    depth: int = 2

    def __post_init__(self):
        if self.depth > 5:
            raise ValueError(f"depth: expected at most 5, got {self.depth}")


class OwnAgent:
    Config = OwnConfig


@pytest.fixture
def own_agent(monkeypatch):
    module = types.ModuleType("own_module")
    module.OwnAgent = OwnAgent
    monkeypatch.setitem(sys.modules, "own_module", module)
    return "own_module:OwnAgent"


def test_agent_outside_the_table_defines_its_settings(write, own_agent):
    config = load_config(write(f"agent: {{name: '{own_agent}', depth: 3}}"))
    assert config.agent == OwnConfig(name=own_agent, depth=3)
    assert agent_factory(own_agent) is OwnAgent


def test_agent_settings_may_reject_their_values(write, own_agent):
    message = error_of(write(f"agent: {{name: '{own_agent}', depth: 6}}"))
    assert message == "x.yaml: agent: depth: expected at most 5, got 6"


def test_the_repr_of_a_config_is_what_differs_from_the_defaults():
    changes = {"seed": 3, "actor.num_envs": 8, "learner.policy_lag": 0, "agent.name": "impala"}
    shown = repr(load_config(None, changes))
    assert shown.split() == [
        "Config(",
        "env.suite='envpool',",
        "env.id='CartPole-v1',",
        "agent.name='impala',",
        "actor.num_envs=8,",
        "learner.policy_lag=0,",
        "seed=3,",
        ")",
    ]
