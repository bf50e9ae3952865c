"""The YAML of configs, whose plain scalars have the types of YAML 1.2.

PyYAML implements YAML 1.1, which reads 1e-4 as a string, 010 as eight, 1:30 as ninety, `no` as
false and 2024-01-01 as a date. Here 1e-4 is a number and the others are strings. Underscores
between digits stay allowed. Documents written by `dump` mean the same in both versions.
"""

import dataclasses
import re
from typing import Any

import yaml

_PLAIN_SCALARS = {  # tag: its pattern, and the characters that a match begins with
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


class Loader(yaml.SafeLoader):
    """Load plain data only, and reject duplicate keys."""

    yaml_implicit_resolvers = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Reject duplicate keys, of which PyYAML would keep the last."""
        check_keys(node)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, (_pattern, _first) in _PLAIN_SCALARS.items():
    _resolver = (f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
    Loader.add_implicit_resolver(*_resolver)
    _Dumper.add_implicit_resolver(*_resolver)

_Dumper.add_representer(
    tuple,
    lambda dumper, items: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", items, flow_style=True
    ),
)


def check_keys(node: yaml.MappingNode) -> None:
    """Raise `yaml.constructor.ConstructorError` with the line of a duplicate or nested key."""
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "expected a name as the key", key.start_mark
            )
        line = key.start_mark.line + 1
        if key.value in lines:
            problem = f"{key.value}: duplicate key, first in line {lines[key.value]}"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        lines[key.value] = line


def construct(node: yaml.Node) -> Any:
    """Return the value of a composed node."""
    return Loader("").construct_document(node)


def parse(text: str) -> Any:
    """Return the value of a document."""
    return yaml.load(text, Loader)


def dump(value: Any) -> str:
    """Return `value` as a document, with each tuple on one line."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def inline(value: Any) -> str:
    """Return `value` on one line, for messages and help."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((each, getattr(value, each.name)) for each in dataclasses.fields(value))
        value = {each.name: setting for each, setting in fields if setting != each.default}
    try:
        text = yaml.dump(
            [value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=float("inf")
        )
    except yaml.representer.RepresenterError:
        return repr(value)
    return text.strip()[1:-1]
