"""The processes of a run, one on each host."""

from sebulba.hosts.connection import (
    are_several,
    check_equal,
    connect,
    disconnect,
    exit_when_lost,
    gather_texts,
    is_first,
)

__all__ = [
    "are_several",
    "check_equal",
    "connect",
    "disconnect",
    "exit_when_lost",
    "gather_texts",
    "is_first",
]
