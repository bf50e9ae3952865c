"""The command line: help and usage errors, both without importing JAX."""

import re

import pytest

from sebulba.config import ActorConfig, Config
from sebulba.config.agents import agent_config_class
from sebulba.config.flags import field_docs, parse
from sebulba.config.schema import key_types, sections
from sebulba_agents import AGENTS
from tests.subprocesses import ROOT, run_python

CATCH = str(ROOT / "configs" / "impala_catch.yaml")


def run_train(*arguments):
    return run_python("-X", "importtime", "-m", "sebulba.train", *arguments)


def imported_packages(result):
    modules = re.findall(r"^import time:.*\| +([\w.]+)$", result.stderr, re.MULTILINE)
    return {module.partition(".")[0] for module in modules}


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        parse([*arguments, "--help"], "prog", "What it does.")
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_train_help_exits_0_without_importing_jax():
    result = run_train("--help")
    assert result.returncode == 0
    assert "--actor.num-envs <int ≥ 1>  (default: 16)" in result.stdout
    packages = imported_packages(result)
    assert "yaml" in packages
    assert not packages & {"jax", "numpy", "flax", "gymnasium", "envpool"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CATCH, "--actor.num-envs", "x"), "--actor.num-envs: expected int ≥ 1, got x (str)"),
        ((), "expected a config file, or --env.id and other flags, got none"),
    ],
)
def test_train_usage_error_exits_2_with_the_message_last_and_without_importing_jax(
    arguments, message
):
    result = run_train(*arguments)
    assert result.returncode == 2
    assert [line for line in result.stderr.splitlines() if "import time:" not in line][
        -1
    ] == message
    assert "jax" not in imported_packages(result)


def test_parse_takes_the_config_file_before_and_after_flags():
    before = parse([CATCH, "--seed", "3"], "prog", "")
    after = parse(["--seed", "3", CATCH], "prog", "")
    assert before == after
    assert (before.seed, before.env.id) == (3, "Catch-v0")


def test_parse_needs_no_config_file_if_a_flag_names_the_environment():
    config = parse(["--env.id", "Acrobot-v1", "--agent.name", "ppo"], "prog", "")
    assert (config.env.id, config.agent.name) == ("Acrobot-v1", "ppo")


def test_parse_of_two_config_files_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["a.yaml", "b.yaml"], "prog", "")
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "expected one config file, got a.yaml b.yaml"


def test_help_shows_every_field_once_with_its_default_and_docstring(capsys):
    text = help_of(capsys)
    flags = re.findall(r"^  (--\S+) <", text, re.MULTILINE)
    agent_class = agent_config_class(next(iter(AGENTS)))
    assert sorted(flags) == sorted(
        "--" + key.replace("_", "-").rstrip("-") for key in key_types(agent_class)
    )
    assert "--devices.learner <[int ≥ 0, ...] | null>  (default: null)" in text
    docs = [*field_docs(ActorConfig).values(), *field_docs(agent_class).values()]
    unwrapped = "".join(text.split())
    assert [doc for doc in docs if "".join(doc.split()) not in unwrapped] == []


def test_help_shows_the_values_of_the_command_line_as_defaults(capsys):
    text = help_of(capsys, CATCH, "--agent.learning-rate", "5e-4")
    assert "--env.id <str>  (default: Catch-v0)" in text
    assert "--run.stop-at-return <float | null>  (default: 0.95)" in text
    assert "--agent.learning-rate <float ≥ 0 | {schedule: ..., ...}>  (default: 0.0005)" in text


def test_help_shows_schedules_and_explains_keys_that_an_unfinished_config_lacks(capsys):
    rate = "{schedule: linear, start: 1e-3, end: 0}"
    text = help_of(capsys, "--agent.name", "a2c", "--agent.learning-rate", rate)
    assert "(default: {schedule: linear, start: 0.001, end: 0.0})" in text
    assert "--learner.allow-uncorrected-lag <bool>  (default: false)" in text


def test_help_describes_the_selected_agent(capsys):
    assert "R2D2 (Kapturowski" in help_of(capsys, "--agent.name", "r2d2")


@pytest.mark.parametrize("name", AGENTS)
def test_every_field_of_every_section_has_a_docstring(name):
    agent_class = agent_config_class(name)
    owners = {f"{section}.": cls for section, cls in sections(agent_class).items()} | {"": Config}
    documented = [
        prefix + field
        for prefix, cls in owners.items()
        for field, doc in field_docs(cls).items()
        if doc
    ]
    assert sorted(documented) == sorted(key_types(agent_class))


def test_several_seeds_resume_with_the_config_of_one_of_them(tmp_path):
    (tmp_path / "seed-3").mkdir()
    text = (ROOT / "configs" / "impala_catch.yaml").read_text()
    (tmp_path / "seed-3" / "config.yaml").write_text(text)
    config = parse(["--run-dir", str(tmp_path), "--resume", "latest"], "prog", "What it does.")
    assert (config.env.id, config.run_dir) == ("Catch-v0", str(tmp_path))
