"""Close environments for a limited time: their code may raise, hang or exit."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from sebulba.errors import ALSO, describe_error
from sebulba.process import start_daemon

_POLL_S = 0.2  # between two questions whether to wait on


class Closable(Protocol):
    """Environments, or what holds them."""

    def close(self) -> None:
        """Release everything."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloseProblem:
    """Why environments are not closed."""

    whose: str
    text: str
    is_running: bool  # `close` has not returned, and may never

    def __str__(self) -> str:
        return f"close of the environments of {self.whose}: {self.text}"


def close_environments(
    environments: Mapping[str, Closable],
    timeout_s: float,
    *,
    may_wait: Callable[[], bool] = lambda: True,
) -> list[CloseProblem]:
    """Close environments for a limited time: their code may raise, hang or exit. Never raises.

    Args:
        environments: by whose they are, such as "actor 0"; no cycle may be running.
        timeout_s: of all of them together.
        may_wait: asked several times a second; False ends the wait.
    """
    errors: dict[str, BaseException] = {}

    def close(whose: str) -> None:
        try:
            environments[whose].close()
        except BaseException as error:
            errors[whose] = error

    threads = {
        whose: start_daemon(functools.partial(close, whose), f"close of {whose}")
        for whose in environments
    }
    deadline = time.monotonic() + timeout_s
    for thread in threads.values():
        while thread.is_alive() and (left := deadline - time.monotonic()) > 0.0 and may_wait():
            thread.join(min(left, _POLL_S))
    problems = []
    for whose, thread in threads.items():
        if thread.is_alive():
            text = f"still running after {timeout_s:g} s (run.close_timeout_s)"
            if not may_wait():
                text = "still running when a signal ended the wait"
            problems.append(CloseProblem(whose=whose, text=text, is_running=True))
        elif whose in errors:
            text = describe_error(errors[whose])
            problems.append(CloseProblem(whose=whose, text=text, is_running=False))
    return problems


@contextlib.contextmanager
def closed_on_error(environments: Mapping[str, Closable], timeout_s: float) -> Iterator[None]:
    """Close environments on an error within; a problem is a note on it.

    Args:
        environments: by whose they are, as of the error.
        timeout_s: of all of them together.
    """
    try:
        yield
    except BaseException as error:
        for problem in close_environments(environments, timeout_s):
            error.add_note(f"{ALSO} {problem}.")
        raise
