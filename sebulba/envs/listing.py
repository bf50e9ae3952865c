"""Which suites there are, which of them are installed, and the ids that each has."""

import dataclasses
import importlib
import importlib.metadata
import warnings
from collections.abc import Iterator

from sebulba.config.plugins import SUITES_GROUP, plugin_package, plugins
from sebulba.envs import PACKAGES, SUITES
from sebulba.envs.lookup import missing_package
from sebulba.errors import nearest_names

_MOST_NEAREST = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteListing:
    """One suite, as far as it is installed."""

    name: str
    package: str
    version: str | None  # None: not installed
    ids: tuple[str, ...] | None  # None: not installed, or its adapter has no `ids`
    trouble: str | None = None  # why it cannot be used, with the command that helps


def list_suites() -> Iterator[SuiteListing]:
    """Yields every suite, those that other packages bring after our own."""
    for name, reference in SUITES.items():
        package = PACKAGES.get(name, "sebulba")
        yield _list_suite(name, reference, package, _version(package))
    for name, reference in plugins(SUITES_GROUP).items():
        if name not in SUITES:
            package, version = plugin_package(SUITES_GROUP, name) or ("unknown", None)
            yield _list_suite(name, reference, package, version)


def matching_ids(ids: tuple[str, ...], text: str) -> list[str]:
    """Returns the ids that contain `text`, in any case; if none does, the nearest ones."""
    containing = [each for each in ids if text.lower() in each.lower()]
    if containing:
        return containing
    return nearest_names(text, ids, most=_MOST_NEAREST)


def _list_suite(name: str, reference: str, package: str, version: str | None) -> SuiteListing:
    """Imports the adapter: an installed package that cannot be imported is of no use."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of third parties, about themselves.
            module = importlib.import_module(reference.partition(":")[0])
            ids = tuple(sorted(module.ids())) if hasattr(module, "ids") else None
    except Exception as error:
        trouble = missing_package(error) or f"{type(error).__name__}: {error}"
        return SuiteListing(name=name, package=package, version=version, ids=None, trouble=trouble)
    return SuiteListing(name=name, package=package, version=version, ids=ids)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
