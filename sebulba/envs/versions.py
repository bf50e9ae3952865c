"""Check that Gymnasium is new enough, since some packages replace it by an older version."""

import functools
import importlib.metadata
import re

from sebulba.errors import ConfigError

MINIMUM = (1, 3)


@functools.cache
def check_gymnasium() -> None:
    """Check the installed version of Gymnasium.

    Raises:
        ConfigError: it is older than `MINIMUM`; names the packages that require an old version.
    """
    version = importlib.metadata.version("gymnasium")
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) >= MINIMUM:
        return
    minimum = ".".join(map(str, MINIMUM))
    requiring = ", ".join(sorted(set(_requiring_old())))
    reason = f", as required by {requiring}" if requiring else ""
    raise ConfigError(
        f"expected Gymnasium {minimum} or newer, got {version}{reason}. Run pip install"
        f" 'gymnasium>={minimum}', which most packages run with, whatever they require"
    )


def _requiring_old() -> list[str]:
    """Return `package version (requirement)` of the packages that do not allow every version."""
    found = []
    for distribution in importlib.metadata.distributions():
        for requirement in distribution.requires or ():
            what, _, condition = requirement.partition(";")
            name = re.match(r"[\w.-]*", what)
            is_gymnasium = name is not None and name.group().lower() == "gymnasium"
            if is_gymnasium and re.search("==|<|~=", what) and "extra" not in condition:
                package = distribution.metadata["Name"]
                found.append(f"{package} {distribution.version} ({what.replace(' ', '')})")
    return found
