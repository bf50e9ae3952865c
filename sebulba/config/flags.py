"""The command line of everything that takes a config: `CONFIG [--section.field VALUE ...]`.

The flags, their types, defaults and explanations are those of the config schema. Imports no jax.
"""

import ast
import dataclasses
import inspect
import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from sebulba.config import Config
from sebulba.config.coercion import describe_type
from sebulba.config.loading import flag_name, load_config, schema, sections, split_arguments
from sebulba.config.yaml_dialect import inline
from sebulba.errors import ConfigError

USAGE_ERROR = 2
"""The exit code of a wrong config or command line."""


def parse(argv: Sequence[str], prog: str, description: str) -> Config:
    """Returns the config that the command line asks for.

    `--help` prints every flag, with the values of the rest of the command line as defaults, and
    exits with 0. What is wrong goes to stderr, the message in the last line, and exits with 2.

    Args:
        argv: without the program's name.
        prog: how the program is called, for the usage line.
        description: what it does.
    """
    wants_help = any(argument in ("-h", "--help") for argument in argv)
    argv = [argument for argument in argv if argument not in ("-h", "--help")]
    usage = f"usage: {prog} CONFIG [--section.field VALUE ...]"
    try:
        paths, flags = split_arguments(argv)
        if len(paths) != 1 and not (wants_help and not paths):
            raise ConfigError(f"expected one config file, got {' '.join(paths) or 'none'}")
        path = paths[0] if paths else None
        config = load_config(path, [f"{flag}={text}" for flag, text in flags.items()])
    except ConfigError as error:
        print(f"{usage}\n{error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    if wants_help:
        source = path or "the schema"
        print(f"{usage}\n\n{description}\n\n{_describe_flags(config, source)}")
        sys.exit(0)
    return config


def field_docs(cls: type) -> dict[str, str]:
    """Returns the docstring below each field of a dataclass, its own or the nearest inherited."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _own_field_docs(base)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }


def _describe_flags(config: Config, source: str) -> str:
    intro = (
        "A VALUE is YAML: 1e-4, true, null, '[64, 64]', '{max_episode_steps: 200}'. A flag replaces"
        f" the config's value; the defaults shown are those of {source}."
    )
    return "\n".join([*_wrap(intro, indent=""), *_describe_sections(config)])


def _describe_sections(config: Config) -> Iterator[str]:
    annotations = schema(type(config.agent))
    groups = sections(type(config.agent)) | {"": Config}
    for section, cls in groups.items():
        yield (
            f"\n{section}: {(inspect.getdoc(cls) or '').splitlines()[0]}"
            if section
            else "\nthe rest:"
        )
        owner = getattr(config, section) if section else config
        docs = field_docs(cls)
        for field in dataclasses.fields(cls):
            key = f"{section}.{field.name}".strip(".")
            if key in annotations:
                value = getattr(owner, field.name)
                yield from _describe_flag(key, annotations[key], value, docs.get(field.name, ""))


def _describe_flag(key: str, annotation: Any, value: Any, doc: str) -> Iterator[str]:
    yield f"  {flag_name(key)} <{describe_type(annotation)}>  (default: {inline(value)})"
    yield from _wrap(doc, indent="        ")


def _wrap(text: str, *, indent: str) -> list[str]:
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
