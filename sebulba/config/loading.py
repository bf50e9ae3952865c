"""Build a config from the schema's defaults, a YAML file, and flags or overrides.

The file replaces defaults, and flags or overrides replace values of the file, key by key
(`actor.num_envs`). They replace the complete value: `--env.options` does not add to the file's
mapping, but `--env.options.NAME` sets one entry of it.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from sebulba.config import yaml_dialect
from sebulba.config.agents import DEFAULT_AGENT, agent_config_class
from sebulba.config.coercion import coerce, coerce_text
from sebulba.config.entries import with_entries
from sebulba.config.file import WORDS, Setting, read_config_file
from sebulba.config.schema import SECTIONS, Config, key_types, sections
from sebulba.config.shipped import find_config
from sebulba.config.unknown_keys import suggestion
from sebulba.config.validation import problems, value_of
from sebulba.errors import ConfigError

__all__ = ["ConfigError", "load_config", "to_yaml"]


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
        is_complete: False skips `sebulba.config.validation.problems`, such as values that do not
            suit each other.

    Raises:
        ConfigError: the first wrong value, with file and line, the flag or the key.
    """
    if not isinstance(name_or_path, str | os.PathLike | None):
        raise ConfigError(
            f"config: expected the name or path of a file, got {type(name_or_path).__name__}; of"
            " settings alone, sebulba.load_config(None, {'env.id': ...}) makes a config"
        )
    path = None if name_or_path is None else find_config(os.fspath(name_or_path))
    source = path or "defaults"
    from_file = {} if path is None else read_config_file(path)
    given = _of_mapping(overrides) if isinstance(overrides, Mapping) else _of_flags(overrides)
    for section in WORDS:
        if section in given:
            from_file, given = _replace_section(section, from_file, given)

    agent_class = _agent_class(from_file | given)
    declared = key_types(agent_class)
    # The flag of `lambda_` is `--lambda`.
    keys = {flag_name(key): key for key in declared}
    given = {keys.get(flag_name(key), key): setting for key, setting in given.items()}
    entries = functools.partial(
        with_entries,
        declared=declared,
        default_of=functools.partial(_default_of, agent_class),
        written=flag_name,
    )
    from_file = entries(from_file, replaced={})
    given = entries(given, replaced=from_file)
    settings: dict[str, Setting] = {}
    for key, setting in itertools.chain(from_file.items(), given.items()):
        if key not in declared:
            if setting.is_text:
                meant = suggestion(key, declared, written=flag_name)
                raise ConfigError(f"{setting.where}: unknown flag{meant}")
            raise ConfigError(f"{setting.where}: unknown key{suggestion(key, declared)}")
        convert = coerce_text if setting.is_text else coerce
        try:
            value = convert(setting.value, declared[key])
        except ConfigError as error:
            raise ConfigError(f"{setting.where}: {error}") from None
        settings[key] = dataclasses.replace(setting, value=value)

    # `auto` of an agent's setting asks for the default that suits the task, like no value at all.
    given_keys = {
        key
        for key, setting in settings.items()
        if not (key.startswith("agent.") and setting.value == "auto")
    }
    config = _build(agent_class, settings, source=source)
    open_defaults = {key: value_of(config, key) for key in declared if key not in given_keys}
    config = dataclasses.replace(config, open_defaults=open_defaults)
    for key, message in problems(config) if is_complete else ():
        where = settings[key].where if key in settings else f"{source}: {key}"
        raise ConfigError(f"{where}: {message}")
    return config


def to_yaml(config: Config) -> str:
    """Return `config` as YAML with every key; `load_config` reads it back as an equal `Config`."""
    values = dataclasses.asdict(config)
    del values["open_defaults"]
    return yaml_dialect.dump(values)


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


def _of_mapping(overrides: Mapping[str, Any]) -> dict[str, Setting]:
    """Return overrides by dotted key; a section stays whole if its value is a word."""
    values: dict[str, Any] = {}
    for key, value in overrides.items():
        is_word = isinstance(value, str) and value in WORDS.get(key, ())
        if key not in SECTIONS or is_word:
            values[key] = value
        elif isinstance(value, Mapping):
            values |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            expected = " or ".join([*WORDS.get(key, ()), "a mapping, {name: value, ...}"])
            raise ConfigError(f"overrides: {key}: expected {expected}, got {value!r}")
    return {key: Setting(value=each, where=f"overrides: {key}") for key, each in values.items()}


def _of_flags(arguments: Sequence[str]) -> dict[str, Setting]:
    """Return the texts of flags by dotted key."""
    positionals, texts = split_arguments(arguments)
    if positionals:
        raise ConfigError(f"{positionals[0]}: expected a flag, --section.field VALUE")
    return {
        flag.removeprefix("--").replace("-", "_"): Setting(value=text, where=flag, is_text=True)
        for flag, text in texts.items()
    }


def _replace_section(
    section: str, from_file: dict[str, Setting], given: dict[str, Setting]
) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Replace a section of the file by the values that a word stands for: `--devices auto`."""
    word, prefix = given[section], f"{section}."
    if word.value not in WORDS[section]:
        raise ConfigError(
            f"{word.where}: expected {' or '.join(WORDS[section])}, got {word.value!r}. Or set"
            f" single keys: {word.where}.KEY"
        )
    for key, setting in given.items():
        if key.startswith(prefix):
            raise ConfigError(
                f"`{word.where} {word.value}` cannot be combined with `{setting.where}`"
            )
    values = WORDS[section][word.value]
    meant = {
        f"{prefix}{key}": dataclasses.replace(word, value=each) for key, each in values.items()
    }
    return (
        {key: each for key, each in from_file.items() if not key.startswith(prefix)},
        {key: each for key, each in given.items() if key != section} | meant,
    )


def _agent_class(settings: dict[str, Setting]) -> type:
    default = Setting(value=DEFAULT_AGENT, where="agent.name")
    setting = settings.get("agent.name", default)
    try:
        return agent_config_class(coerce(setting.value, str))
    except ConfigError as error:
        raise ConfigError(f"{setting.where}: {error}") from error.__cause__


def _default_of(agent_class: type, key: str) -> Any:
    section, _, name = key.rpartition(".")
    owner: Any = sections(agent_class)[section] if section else Config
    field = next(each for each in dataclasses.fields(owner) if each.name == name)
    make = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


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
