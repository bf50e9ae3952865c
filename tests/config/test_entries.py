"""Single entries of settings that are mappings, as flags, overrides and keys of a file."""

import dataclasses

import pytest

from sebulba.config.agents import agent_config_class
from sebulba.config.entries import is_mapping
from sebulba.config.loading import flag_name, load_config
from sebulba.config.schema import key_types
from sebulba.config.validation import value_of
from sebulba.toolkit.schedules import Schedule
from tests.config.errors import error_of

OPTIONS = "env:\n  suite: jax\n  id: Catch-v0\n  options: {rows: 7, inner: {a: 1, b: 2}}\n"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--env.options.rows", "5"], {"rows": 5, "inner": {"a": 1, "b": 2}}),
        (["--env.options.save_path", "null"], {"rows": 7, "save_path": None}),
        (["--env.options.save-path=logs"], {"rows": 7, "save_path": "logs"}),
        (["--env.options.inner.a", "3"], {"rows": 7, "inner": {"a": 3, "b": 2}}),
        (["--env.options.new.one", "[1]"], {"rows": 7, "new": {"one": [1]}}),
        (["--env.options", "{x: 1}", "--env.options.y", "2"], {"x": 1, "y": 2}),
        (["--env.options.y", "2", "--env.options", "{x: 1}"], {"x": 1, "y": 2}),
        (["--env.options", "{}", "--env.options.rows", "1e3"], {"rows": 1000.0}),
    ],
)
def test_a_flag_sets_one_entry_of_a_mapping_and_keeps_the_others(write, flags, options):
    got = load_config(write(OPTIONS), flags).env.options
    assert {name: got[name] for name in options} == options
    assert ("rows" in got) == ("--env.options" not in flags or "rows" in options)


def test_an_entry_is_an_override_and_a_key_of_a_file_too(write):
    assert load_config(write(OPTIONS), {"env.options.rows": 5}).env.options["rows"] == 5
    config = load_config(write("env.options.rows: 3\nenv.options.columns: 4\n"))
    assert config.env.options == {"rows": 3, "columns": 4}


def test_entries_of_a_schedule_replace_those_of_the_file_and_of_the_default(write):
    path = write("agent:\n  name: ppo\n  learning_rate: {schedule: linear, start: 1e-3, end: 0}\n")
    rate = load_config(path, ["--agent.learning-rate.end", "1e-4"]).agent.learning_rate
    assert rate == Schedule(schedule="linear", start=1e-3, end=1e-4)
    epsilon = load_config(
        None, ["--agent.name", "ddqn", "--agent.epsilon.end", "0.2"]
    ).agent.epsilon
    assert (
        dataclasses.replace(epsilon, end=0.05)
        == load_config(None, ["--agent.name", "ddqn"]).agent.epsilon
    )


def test_a_number_becomes_a_schedule_if_the_entries_are_all_given(write):
    flags = ["schedule=linear", "start=1e-3", "end=0"]
    path = write("agent: {name: ppo, learning_rate: 2e-4}\n")
    config = load_config(path, [f"--agent.learning-rate.{flag}" for flag in flags])
    assert config.agent.learning_rate == Schedule(schedule="linear", start=1e-3, end=0.0)
    message = error_of(path, ["--agent.learning-rate.end", "0"])
    assert message.startswith("--agent.learning-rate.end: expected a value of `schedule`")


def test_every_mapping_of_the_schema_takes_entries():
    mappings = [
        key for key, each in key_types(agent_config_class("ppo")).items() if is_mapping(each)
    ]
    assert {"env.options", "run.episode_reducers", "run.profile"} < set(mappings)
    entries = {"run.profile": ("cycles", 2)}
    schedule = ("schedule", "constant")
    for key in mappings:
        name, value = entries.get(key, schedule if key.startswith("agent.") else ("x", "m:Y"))
        flags = ["--agent.name", "ppo", f"{flag_name(key)}.{name}={value}"]
        if name == "cycles":
            flags.append("--run.profile.from-cycle=3")
        if name == "schedule":
            flags.append(f"{flag_name(key)}.start=0.25")
        got = value_of(load_config(None, flags), key)
        assert (got if isinstance(got, dict) else vars(got))[name] == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env.options.rows.x", "3"], "--env.options.rows.x: expected rows to be a mapping, got"),
        (["--env.options.rows", "["], "--env.options.rows: expected any, got '['"),
        (["--env.optins.rows", "3"], "unknown flag; did you mean --env.options.rows?"),
        (["--actor.num-envs.x", "3"], "unknown flag; --actor.num-envs is no mapping"),
        (["--env.gravity", "3"], "An argument of the environment is --env.options.gravity"),
        (["--run.profile.cycle", "3"], "--run.profile.cycle: unknown key cycle; did you mean"),
    ],
)
def test_a_wrong_entry_is_told_what_was_meant(write, flags, message):
    assert message in error_of(write(OPTIONS), flags)
