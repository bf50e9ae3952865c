"""Read a config file into dotted keys, each with its line number."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import yaml

from sebulba.config import yaml_dialect
from sebulba.config.schema import SECTIONS
from sebulba.config.shipped import describe_nearest
from sebulba.errors import ConfigError

WORDS: dict[str, dict[str, dict[str, Any]]] = {
    "devices": {"auto": {}},
    "distributed": {"off": {"mode": "off"}, "auto": {"mode": "auto"}},
}
"""Words that may replace a section, and the values of its keys that each word stands for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A value and where it was set."""

    value: Any
    where: str  # begins an error: "configs/x.yaml:7: actor.num_envs"
    is_text: bool = False  # the text of a flag, not converted yet


def read_config_file(path: str) -> dict[str, Setting]:
    """Return the file's values by dotted key; names and types are not checked yet.

    Raises:
        ConfigError: there is no such file, it is no YAML, a key is duplicate, or a section is no
            mapping.
    """
    try:
        text = _read(path)
    except IsADirectoryError:
        what = f"{path}: expected a file, got a directory"
        raise ConfigError(f"{what}{describe_nearest(path)}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path}: no such file{describe_nearest(path)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read the file: {error}") from error
    try:
        return dict(_read_document(yaml_dialect.compose(text), path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark is not None else 1
        raise ConfigError(f"{path}:{line}: {error.problem}") from error


def _read(path: str) -> str:
    with pathlib.Path(path).open("rb") as file:  # may be a pipe or a device, without an end
        data = file.read(yaml_dialect.MAX_BYTES + 1)
    if len(data) > yaml_dialect.MAX_BYTES:
        raise ValueError(f"expected at most {yaml_dialect.MAX_BYTES:,} bytes")
    return data.decode()


def _read_document(root: yaml.Node | None, path: str) -> Iterator[tuple[str, Setting]]:
    for key, node, where in _entries(root, path, where=path):
        if key not in SECTIONS:
            yield key, Setting(value=yaml_dialect.construct(node), where=where)
            continue
        if isinstance(node, yaml.ScalarNode) and node.value in WORDS.get(key, ()):
            for name, value in WORDS[key][node.value].items():
                yield f"{key}.{name}", Setting(value=value, where=where)
            continue
        for name, child, child_where in _entries(node, path, where=where, prefix=f"{key}."):
            value = yaml_dialect.construct(child)
            yield f"{key}.{name}", Setting(value=value, where=child_where)


def _entries(
    node: yaml.Node | None, path: str, *, where: str, prefix: str = ""
) -> Iterator[tuple[str, yaml.Node, str]]:
    """Yield key, value and place of each entry of a mapping; null is an empty mapping."""
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return
    if not isinstance(node, yaml.MappingNode):
        got = yaml_dialect.shown(yaml_dialect.construct(node))
        words = "".join(f"{word} or " for word in WORDS.get(prefix.removesuffix("."), ()))
        raise ConfigError(f"{where}: expected {words}a mapping, {{name: value, ...}}, got {got}")
    yaml_dialect.check_keys(node)
    for key_node, child in node.value:
        key = key_node.value
        yield key, child, f"{path}:{key_node.start_mark.line + 1}: {prefix}{key}"
