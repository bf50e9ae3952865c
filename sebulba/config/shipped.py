"""The configs that come with Sebulba, by name."""

import pathlib
import re
import shutil

from sebulba.errors import ConfigError, did_you_mean, nearest_names

_PACKAGE = pathlib.Path(__file__).parents[1]


def shipped_configs() -> dict[str, pathlib.Path]:
    """Return the file of each config that comes with Sebulba, by its name without `.yaml`."""
    # A wheel has them inside of the package, a checkout beside it.
    inside = _PACKAGE / "shipped"
    folder = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name_or_path: str) -> str:
    """Return the path of a config: an existing file, or else the shipped config of that name.

    The path is returned as it is if there is neither, for the error of whoever reads it.
    """
    if pathlib.Path(name_or_path).is_file():
        return name_or_path
    return str(shipped_configs().get(name_or_path, name_or_path))


def describe_nearest(path: str) -> str:
    """Return the suggestion to append to an error about a config that does not exist."""
    file, shipped = pathlib.Path(path), shipped_configs()
    if not file.name or file.is_dir():
        names = sorted(each.name for each in file.glob("*.yaml"))
        return f"; expected one of the files in it: {', '.join(names)}" if names else ""
    # `configs/x.yaml` in another directory, or `x.yaml`: the config of that name is meant.
    if file.stem in shipped:
        return f"; did you mean {file.stem}, which comes with Sebulba?"
    if not file.parent.is_dir():
        return f"; there is no folder {file.parent}"
    files = [each.name for each in file.parent.glob("*.yaml")]
    is_name = file.parent == pathlib.Path() and not file.suffix
    known = [*files, *shipped] if is_name else files
    if nearest := nearest_names(file.name, known):
        return f"; did you mean {' or '.join(nearest)}?"
    return f"{did_you_mean(file.name, files)}; `sebulba configs` lists those that need no file"


def describe(path: pathlib.Path) -> str:
    """Return the beginning of the comment at the top of a config, without details and sources."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words += line.removeprefix("#").split()
    return re.split(r"(?<! al)[.:;](?: |$)| \(", " ".join(words))[0]


def copy_config(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Copy a shipped config to a folder, and return the new file.

    Raises:
        ConfigError: there is no such config, or the folder has a file of that name.
    """
    shipped = shipped_configs()
    if name not in shipped:
        raise ConfigError(f"{name}: no such config{did_you_mean(name, shipped)}")
    target = folder / shipped[name].name
    try:
        with target.open("xb") as copy, shipped[name].open("rb") as original:
            shutil.copyfileobj(original, copy)
    except FileExistsError:
        raise ConfigError(f"{target}: expected no such file, since it would be lost") from None
    except OSError as error:
        raise ConfigError(f"{target}: cannot write the file: {error}") from error
    return target
