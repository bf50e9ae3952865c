"""The list of environment suites: installed versions and environment ids."""

import dataclasses
import importlib
import warnings
from collections.abc import Iterator

from sebulba.config.extras import missing_package
from sebulba.config.plugins import SUITES_GROUP, package_version, plugin_package, plugins
from sebulba.envs import PACKAGES, SUITES
from sebulba.errors import nearest_names

_MAX_SUGGESTIONS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteListing:
    """One suite and what is installed of it."""

    name: str
    package: str
    version: str | None  # None: not installed
    ids: tuple[str, ...] | None  # None: not installed, or the adapter has no `ids`
    problem: str | None = None  # why the suite cannot be used, with the command that fixes it


def list_suites() -> Iterator[SuiteListing]:
    """Yield every suite: the built-in ones, then those of other installed packages."""
    for name, reference in SUITES.items():
        package = PACKAGES.get(name, "sebulba")
        yield _list_suite(name, reference, package, package_version(package))
    for name, reference in plugins(SUITES_GROUP).items():
        if name not in SUITES:
            package, version = plugin_package(SUITES_GROUP, name) or ("unknown", None)
            yield _list_suite(name, reference, package, version)


def matching_ids(ids: tuple[str, ...], text: str) -> list[str]:
    """Return the ids that contain `text`, ignoring case; without a match, the most similar ids."""
    containing = [each for each in ids if text.lower() in each.lower()]
    if containing:
        return containing
    return nearest_names(text, ids, most=_MAX_SUGGESTIONS)


def _list_suite(name: str, reference: str, package: str, version: str | None) -> SuiteListing:
    """Import the adapter, so that a package that is installed but broken is reported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # third-party deprecations
            module = importlib.import_module(reference.partition(":")[0])
            ids = tuple(sorted(module.ids())) if hasattr(module, "ids") else None
    except Exception as error:
        problem = missing_package(error) or f"{type(error).__name__}: {error}"
        return SuiteListing(name=name, package=package, version=version, ids=None, problem=problem)
    return SuiteListing(name=name, package=package, version=version, ids=ids)
