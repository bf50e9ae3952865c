"""A config file as dotted keys, each with the line that it stands in."""

import dataclasses
import pathlib
import typing
from collections.abc import Iterator
from typing import Any

import yaml

from sebulba.config import Config, yaml_dialect
from sebulba.errors import ConfigError, describe_nearest

SECTIONS = tuple(
    name
    for name, declared in typing.get_type_hints(Config).items()
    if dataclasses.is_dataclass(declared) or name == "agent"
)
"""The keys of a config that hold further keys."""
WORDS: dict[str, dict[str, dict[str, Any]]] = {
    "devices": {"auto": {}},
    "distributed": {"off": {"mode": "off"}, "auto": {"mode": "auto"}},
}
"""Words in the place of a section, and the values of its keys that each stands for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A value, and where it was given."""

    value: Any
    where: str  # begins the message of an error: "configs/x.yaml:7: actor.num_envs"


def read_config_file(path: str) -> dict[str, Setting]:
    """Returns the values that the file gives, by dotted key, neither known nor of right type yet.

    Raises:
        ConfigError: no such file, no YAML, a key twice, or a section that is no mapping.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ConfigError(f"{path}: no such file; {_describe_nearest_files(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return dict(_read_document(yaml.compose(text, yaml_dialect.Loader), path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise ConfigError(f"{path}{line}: {problem}") from error


def _describe_nearest_files(path: str) -> str:
    folder = pathlib.Path(path)
    folder = folder if folder.is_dir() else folder.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(file.name for file in folder.glob("*.yaml"))
    return describe_nearest(pathlib.Path(path).name, names)


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
    """Yields key, value and place of a mapping's entries; of an empty one, nothing."""
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return
    if not isinstance(node, yaml.MappingNode):
        got = yaml_dialect.inline(yaml_dialect.construct(node))
        words = "".join(f"{word} or " for word in WORDS.get(prefix.removesuffix("."), ()))
        raise ConfigError(f"{where}: expected {words}a mapping, {{name: value, ...}}, got {got}")
    yaml_dialect.check_keys(node)
    for key_node, child in node.value:
        key = key_node.value
        yield key, child, f"{path}:{key_node.start_mark.line + 1}: {prefix}{key}"
