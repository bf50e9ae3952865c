"""Format numbers for the page; a missing value is a dash."""

from typing import Any

UNKNOWN = "–"


def count(value: Any) -> str:
    """Format a whole number with thousands separators."""
    return f"{value:,.0f}" if _is_number(value) else _other(value)


def number(value: Any) -> str:
    """Format a number with four significant digits, or all digits before the point."""
    if not _is_number(value):
        return _other(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(value: Any) -> str:
    """Format seconds as hours and minutes, minutes and seconds, or seconds."""
    if not _is_number(value):
        return _other(value)
    minutes, rest = divmod(value, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def share(value: Any) -> str:
    """Format a share in percent."""
    return f"{value:.1%}" if _is_number(value) else _other(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _other(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
