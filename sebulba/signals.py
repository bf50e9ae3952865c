"""Handling of the signals that stop a command. Imports no jax."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with `receive` inside the block; in the main thread only."""
    previous = {
        number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
