"""The YAML of configs, whose plain scalars have the types of YAML 1.2.

PyYAML implements YAML 1.1, which reads 1e-4 as a string, 010 as eight, 1:30 as ninety, `no` as
false and 2024-01-01 as a date. Here 1e-4 is a number and the others are strings. Underscores
between digits stay allowed. Documents written by `dump` mean the same in both versions.

A document is plain data. It has no tags, so no scalar can contradict its type, and no alias to
itself, so its tree is finite. Every error is a `yaml.MarkedYAMLError`.
"""

import dataclasses
import re
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
_MAX_INLINE = 200  # characters
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

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

    def __init__(self, text: str):
        super().__init__(text)
        self._complete: set[yaml.Node] = set()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Compose one node; reject tags and aliases to what is not complete yet."""
        event = self.peek_event()
        mark = event.start_mark
        if getattr(event, "tag", None) not in (None, "!"):
            raise _error(f"tags are not supported, got {event.tag}; write the value alone", mark)
        node = super().compose_node(parent, index)
        assert node is not None
        if isinstance(event, yaml.AliasEvent) and node not in self._complete:
            raise _error(f"*{event.anchor}: the alias is part of what it stands for", mark)
        self._complete.add(node)
        # No path may contain them, and no file in UTF-8 a surrogate.
        if isinstance(node, yaml.ScalarNode) and _NO_TEXT.search(node.value):
            raise _error("expected no NUL and no surrogates in a string", node.start_mark)
        return node

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

# A `sebulba.references.Named` is written as the text that it is.
_Dumper.add_multi_representer(str, yaml.SafeDumper.represent_str)
_Dumper.add_representer(
    tuple,
    lambda dumper, items: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", items, flow_style=True
    ),
)


def _error(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


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


def compose(text: str) -> yaml.Node | None:
    """Return the node of a document; None if it is empty.

    Raises:
        yaml.MarkedYAMLError: the text is no YAML, or not of this dialect.
    """
    try:
        loader = Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position)
        mark = yaml.Mark("", error.position, line, 0, None, 0)
        raise _error(f"unacceptable character #x{error.character:04x}", mark) from None
    try:
        return loader.get_single_node()
    # PyYAML lets errors of `chr` through, of the escape "\UFFFFFFFF", and recurses for each level.
    except (ValueError, OverflowError, RecursionError) as error:
        raise _error(f"not valid: {error}", loader.get_mark()) from error


def construct(node: yaml.Node) -> Any:
    """Return the value of a composed node.

    Raises:
        yaml.MarkedYAMLError: there is no such value.
    """
    try:
        return Loader("").construct_document(node)
    except ValueError as error:  # from `int`, with more than 4,300 digits
        raise _error(f"not valid: {error}", node.start_mark) from error


def parse(text: str) -> Any:
    """Return the value of a document.

    Raises:
        yaml.MarkedYAMLError: as `compose` and `construct`.
    """
    node = compose(text)
    return None if node is None else construct(node)


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
    except (yaml.representer.RepresenterError, RecursionError):
        return repr(value)
    return text.strip()[1:-1]


def shown(value: Any) -> str:
    """Return `value` on one line of limited length, for messages."""
    text = inline(value)
    return text if len(text) <= _MAX_INLINE else f"{text[:_MAX_INLINE]} …"
