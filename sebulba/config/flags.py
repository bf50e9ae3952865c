"""The command line of every command that takes a config: `CONFIG [--section.field VALUE ...]`.

The flags, their types, defaults and explanations come from the config schema. Imports no jax.
"""

import ast
import dataclasses
import inspect
import itertools
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from sebulba.config import Config
from sebulba.config.coercion import describe_type
from sebulba.config.loading import flag_name, load_config, split_arguments
from sebulba.config.naming import expanded
from sebulba.config.schema import SECTIONS, key_fields
from sebulba.config.yaml_dialect import inline
from sebulba.errors import ConfigError, refuse
from sebulba.process import EXIT_DONE


def parse(argv: Sequence[str], prog: str, description: str) -> Config:
    """Return the config that the command line describes.

    `--help` prints every flag, with the config file's values as defaults, and exits with 0. An
    error is the last line on stderr, and exits with 2. Without a config, `--env.id` names the
    environment, and `--run-dir RUN --resume latest` uses the run's config.

    Args:
        argv: the arguments, without the program's name.
        prog: the program's name, for the usage line.
        description: what the program does, for `--help`.
    """
    wants_help = any(argument in ("-h", "--help") for argument in argv)
    argv = [argument for argument in argv if argument not in ("-h", "--help")]
    usage = f"usage: {prog} CONFIG [--section.field VALUE ...]"
    try:
        paths, flags = split_arguments(argv)
        paths = paths or _config_of_run(flags)
        if len(paths) > 1:
            raise ConfigError(f"expected one config file, got {' '.join(paths)}")
        if not (paths or "--env.id" in flags or wants_help):
            raise ConfigError("expected a config file, or --env.id and other flags, got none")
        path = paths[0] if paths else None
        arguments = [f"{flag}={text}" for flag, text in flags.items()]
        # Help must explain the keys that an unfinished config lacks.
        config = load_config(path, arguments, is_complete=not wants_help)
    except ConfigError as error:
        sys.exit(refuse(error, usage=usage))
    if wants_help:
        source = path or "the schema"
        print(f"{usage}\n\n{description}\n\n{_describe_flags(config, source)}")
        sys.exit(EXIT_DONE)
    return config


def _config_of_run(flags: dict[str, str]) -> list[str]:
    """Return the config file of the run that `--resume` continues, if there is one.

    Of several seeds it is that of any of them: they differ in `seed` and `run_dir`.
    """
    if "--run-dir" not in flags or flags.get("--resume", "null") == "null":
        return []
    directory = expanded(flags["--run-dir"])
    paths = [directory / "config.yaml", *sorted(directory.glob("seed-*/config.yaml"))]
    path = next((each for each in paths if each.is_file()), None)
    if path is None:
        raise ConfigError(f"--resume: expected a run in {directory}, which has no config.yaml")
    return [str(path)]


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, inherited fields included."""
    docs: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        # Python drops the string below a field, so it is read from the source.
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, doc in itertools.pairwise(definition.body):
            match field, doc:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = inspect.cleandoc(text)
    return docs


def describe_keys(section: str, values: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield dotted name, type, value and explanation of every key of a section, as text.

    Args:
        section: the section's name; empty for the top level.
        values: the section's dataclass; the `Config` for the top level.
    """
    annotations = typing.get_type_hints(type(values), include_extras=True)
    docs = field_docs(type(values))
    for field in key_fields(values):
        if section or field.name not in SECTIONS:
            key = f"{section}.{field.name}".strip(".")
            value = inline(getattr(values, field.name))
            yield key, describe_type(annotations[field.name]), value, docs.get(field.name, "")


def _describe_flags(config: Config, source: str) -> str:
    lines = _wrap(
        "A VALUE is YAML: 1e-4, true, null, '[64, 64]', '{max_episode_steps: 200}',"
        " '{schedule: linear, start: 1e-3, end: 0}'. A flag replaces"
        " the config's value, and --env.options.NAME VALUE one entry of a mapping. Defaults are"
        f" those of {source}.",
        indent="",
    )
    for section in [*SECTIONS, ""]:
        values = getattr(config, section) if section else config
        summary = (inspect.getdoc(type(values)) or "").splitlines()[0]
        lines += ["", f"{section}: {summary}" if section else "top level:"]
        for key, type_name, value, doc in describe_keys(section, values):
            lines += [f"  {flag_name(key)} <{type_name}>  (default: {value})"]
            lines += _wrap(doc, indent="        ")
    return "\n".join(lines)


def _wrap(text: str, *, indent: str) -> list[str]:
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
