"""Numbers as a page shows them; what has not been measured is a dash."""

from typing import Any

UNKNOWN = "–"


def count(value: Any) -> str:
    """Returns a whole number with its thousands apart."""
    return f"{value:,.0f}" if _is_number(value) else _other(value)


def number(value: Any) -> str:
    """Returns a number to four digits that count, or all of those before the point."""
    if not _is_number(value):
        return _other(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(value: Any) -> str:
    """Returns a time as hours, minutes and seconds, as far as it has them."""
    if not _is_number(value):
        return _other(value)
    minutes, rest = divmod(value, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def share(value: Any) -> str:
    """Returns a share in percent."""
    return f"{value:.1%}" if _is_number(value) else _other(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _other(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
