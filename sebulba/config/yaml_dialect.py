"""YAML as configs are written: plain scalars mean what they do in YAML 1.2.

PyYAML follows YAML 1.1, for which 1e-4 is a string, 010 is eight, 1:30 is ninety, `no` is false and
2024-01-01 is a date. Here numbers are numbers, and everything else is a string. Underscores between
digits are kept from YAML 1.1. What is written reads the same by either rule.
"""

import re
from typing import Any

import yaml

_PLAIN_SCALARS = {  # tag: the spellings of it, and the characters that they begin with
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
    """Plain data only; a key given twice is an error."""

    yaml_implicit_resolvers = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Rejects duplicate keys, of which PyYAML keeps the last."""
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
    """Raises `yaml.constructor.ConstructorError`, with the line, on a key given twice or nested."""
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "expected a name as key", key.start_mark
            )
        line = key.start_mark.line + 1
        if key.value in lines:
            problem = f"{key.value}: given twice, first in line {lines[key.value]}"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        lines[key.value] = line


def construct(node: yaml.Node) -> Any:
    """Returns the value of a composed node."""
    return Loader("").construct_document(node)


def parse(text: str) -> Any:
    """Returns the value of a whole document."""
    return yaml.load(text, Loader)


def dump(value: Any) -> str:
    """Returns `value` as a document; tuples on one line."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def inline(value: Any) -> str:
    """Returns `value` on one line, for messages and help."""
    try:
        text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, width=float("inf"))
    except yaml.representer.RepresenterError:
        return repr(value)
    return text.strip()[1:-1]
