"""Whether pictures can be drawn here."""

import importlib.util

from sebulba.errors import ConfigError


def require_matplotlib() -> None:
    """Raises `ConfigError` with the command that helps if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "expected the package matplotlib, which is not installed: pip install 'sebulba[plot]'"
        )
