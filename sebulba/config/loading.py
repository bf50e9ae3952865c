"""Build a config from the schema's defaults, a YAML file, and flags or overrides.

The file replaces defaults, and flags or overrides replace values of the file, key by key
(`actor.num_envs`). They replace the complete value: `--env.options` does not add to the file's
mapping.
"""

import dataclasses
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sebulba.config import Config, yaml_dialect
from sebulba.config.agents import DEFAULT_AGENT, agent_config_class
from sebulba.config.coercion import coerce, coerce_text
from sebulba.config.file import SECTIONS, WORDS, Setting, read_config_file
from sebulba.config.shipped import find_config
from sebulba.config.validation import problems, value_of
from sebulba.errors import ConfigError, did_you_mean

__all__ = ["ConfigError", "load_config", "to_yaml"]

_REMOVED = {
    "learner.max_policy_lag": "it is learner.policy_lag now, which is exact and not a bound",
    "agent.learning_rate_decay": "set agent.learning_rate: {schedule: linear, start: RATE, end: 0}",
    "agent.torso": "it is agent.network now, and may also be module:Name",
    "agent.clip_decay": "set agent.clip: {schedule: linear, start: CLIP, end: 0}",
    **dict.fromkeys(
        ("agent.epsilon_start", "agent.epsilon_end", "agent.epsilon_decay_env_steps"),
        "set agent.epsilon: {schedule: linear, start: 1, end: 0.05, env_steps: 10_000}",
    ),
    "run.record_schedule": "a run with learner.policy_lag is repeatable without a record",
    "run.replay_schedule": "a run with learner.policy_lag is repeatable without a record",
}
"""Keys of earlier versions, and what to set instead."""


def load_config(
    name_or_path: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    is_complete: bool = True,
) -> Config:
    """Return the resolved config.

    Args:
        name_or_path: a YAML file, or the name of a config that comes with Sebulba, such as
            `impala_cartpole`; None for the defaults only.
        overrides: values by dotted key or section, `{"actor.num_envs": 32}` or `{"actor":
            {"num_envs": 32}}`; or the flags of a command line, `["--actor.num-envs", "32"]`. The
            value of a flag is YAML, or the text itself if the key is a string. Of a repeated flag,
            the last one counts.
        is_complete: False skips what `sebulba.config.validation` checks.

    Raises:
        ConfigError: the first wrong value, with file and line, the flag or the key.
    """
    path = None if name_or_path is None else find_config(os.fspath(name_or_path))
    settings = {} if path is None else read_config_file(path)
    convert: Callable[[Any, Any], Any]
    if isinstance(overrides, Mapping):
        given, convert, noun = _settings_of(overrides), coerce, "key"
    else:
        settings, given = _flag_settings(settings, overrides)
        convert, noun = coerce_text, "flag"
    agent_class = _agent_class(settings | given)
    annotations = schema(agent_class)
    # The flag of `lambda_` is `--lambda`.
    keys = {flag_name(key): key for key in annotations}
    given = {keys.get(flag_name(key), key): setting for key, setting in given.items()}
    settings = _coerce(settings, annotations, coerce, noun="key")
    settings |= _coerce(given, annotations, convert, noun=noun)
    config = _build(agent_class, settings, source=path or "defaults")
    for key, message in problems(config) if is_complete else ():
        where = settings[key].where if key in settings else f"{path or 'defaults'}: {key}"
        raise ConfigError(f"{where}: {message}")
    return config


def to_yaml(config: Config) -> str:
    """Return `config` as YAML with every key; `load_config` reads it back as an equal `Config`."""
    return yaml_dialect.dump(dataclasses.asdict(config))


def default_settings(agent_name: str) -> dict[str, Any]:
    """Return the default of every dotted key of a config with this agent.

    Raises:
        ConfigError: there is no such agent, or it has settings without a default.
    """
    agent_class = agent_config_class(agent_name)
    config = _build(agent_class, {}, source=agent_name)
    return {key: value_of(config, key) for key in schema(agent_class)}


def sections(agent_class: type) -> dict[str, type]:
    """Return the dataclass of each section; that of `agent` is `agent_class`."""
    declared = typing.get_type_hints(Config) | {"agent": agent_class}
    return {name: declared[name] for name in SECTIONS}


def schema(agent_class: type) -> dict[str, Any]:
    """Return the declared type of every dotted key."""
    annotations = {}
    for section, cls in sections(agent_class).items():
        hints = typing.get_type_hints(cls)  # also of class variables, which are no settings
        for field in dataclasses.fields(cls):
            annotations[f"{section}.{field.name}"] = hints[field.name]
    declared = typing.get_type_hints(Config).items()
    return annotations | {name: each for name, each in declared if name not in SECTIONS}


def flag_name(key: str) -> str:
    """Return the flag of a key: `--actor.num-envs`."""
    return "--" + key.replace("_", "-").strip("-")


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the positional arguments and the text of each flag.

    Raises:
        ConfigError: a flag has no value.
    """
    positionals, texts = [], {}
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-"):
            positionals.append(argument)
            continue
        flag, equals, text = argument.partition("=")
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise ConfigError(f"{flag}: expected a value, got none")
        texts[flag_name(flag.strip("-"))] = text
    return positionals, texts


def _take_word(
    section: str, file_settings: dict[str, Setting], texts: dict[str, str]
) -> tuple[dict[str, Setting], dict[str, str]]:
    """Replace `--section WORD` and the file's section by the keys that the word stands for."""
    flag, words = flag_name(section), WORDS[section]
    if flag not in texts:
        return file_settings, texts
    if texts[flag] not in words:
        expected = " or ".join(words)
        raise ConfigError(
            f"{flag}: expected {expected}, got {texts[flag]!r}. Or set single keys: {flag}.KEY"
        )
    for other in texts:
        if other.startswith(f"{flag}."):
            raise ConfigError(f"`{flag} {texts[flag]}` cannot be combined with `{other}`")
    meant = {flag_name(f"{section}.{name}"): text for name, text in words[texts[flag]].items()}
    return (
        {key: each for key, each in file_settings.items() if not key.startswith(f"{section}.")},
        {other: text for other, text in texts.items() if other != flag} | meant,
    )


def _settings_of(overrides: Mapping[str, Any]) -> dict[str, Setting]:
    settings = {}
    for key, value in overrides.items():
        entries = {key: value}
        if key in SECTIONS:
            words = WORDS.get(key, {})
            section = words.get(value) if isinstance(value, str) else value
            if not isinstance(section, Mapping):
                expected = " or ".join([*words, "a mapping, {name: value, ...}"])
                raise ConfigError(f"overrides: {key}: expected {expected}, got {value!r}")
            entries = {f"{key}.{name}": each for name, each in section.items()}
        for name, each in entries.items():
            settings[name] = Setting(value=each, where=f"overrides: {name}")
    return settings


def _flag_settings(
    file_settings: dict[str, Setting], arguments: Sequence[str]
) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Return the file's settings that no word replaces, and those of the flags."""
    positionals, texts = split_arguments(arguments)
    if positionals:
        raise ConfigError(f"{positionals[0]}: expected a flag, --section.field VALUE")
    for section in WORDS:
        file_settings, texts = _take_word(section, file_settings, texts)
    return file_settings, {
        flag.removeprefix("--").replace("-", "_"): Setting(value=text, where=flag)
        for flag, text in texts.items()
    }


def _agent_class(settings: dict[str, Setting]) -> type:
    default = Setting(value=DEFAULT_AGENT, where="agent.name")
    setting = settings.get("agent.name", default)
    try:
        return agent_config_class(coerce(setting.value, str))
    except ConfigError as error:
        raise ConfigError(f"{setting.where}: {error}") from error.__cause__


def _coerce(
    settings: dict[str, Setting],
    annotations: dict[str, Any],
    convert: Callable[[Any, Any], Any],
    *,
    noun: str,
) -> dict[str, Setting]:
    coerced = {}
    for key, setting in settings.items():
        if key not in annotations:
            raise ConfigError(f"{setting.where}: unknown {noun}{_nearest_keys(key, annotations)}")
        try:
            value = convert(setting.value, annotations[key])
        except ConfigError as error:
            raise ConfigError(f"{setting.where}: {error}") from None
        coerced[key] = dataclasses.replace(setting, value=value)
    return coerced


def _nearest_keys(key: str, annotations: dict[str, Any]) -> str:
    if key in _REMOVED:
        return f"; {_REMOVED[key]}"
    section, _, name = key.rpartition(".")
    elsewhere = [known for known in annotations if known.rpartition(".")[2] == name]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    if section in SECTIONS:
        known = [known for known in annotations if known.startswith(f"{section}.")]
        return did_you_mean(name, (each.rpartition(".")[2] for each in known))
    top_level = dict.fromkeys(known.partition(".")[0] for known in annotations)
    return did_you_mean(section or name, top_level)


def _build(agent_class: type, settings: dict[str, Setting], *, source: str) -> Config:
    values: dict[str, Any] = {}
    for section, cls in sections(agent_class).items():
        prefix = f"{section}."
        of_section = {
            key.removeprefix(prefix): setting.value
            for key, setting in settings.items()
            if key.startswith(prefix)
        }
        try:
            values[section] = cls(**of_section)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{source}: {section}: {error}") from error
    values |= {key: setting.value for key, setting in settings.items() if "." not in key}
    return Config(**values)
