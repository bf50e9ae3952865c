"""The signals that ask a command to stop. Imports no jax."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Hands SIGINT and SIGTERM to `receive`, as a handler; in the main thread only."""
    previous = {
        number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
