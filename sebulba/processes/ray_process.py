"""An object of Sebulba in a process that Ray starts, and starts again."""

import contextlib
import importlib
import platform
from typing import Any

from sebulba import __version__
from sebulba.errors import ConfigError
from sebulba.processes.remote_process import ProcessGone, ProcessLost


class RayProcess:
    """A `RemoteProcess` that Ray has started, with an object that the process makes itself.

    What the object is given and returns crosses as Ray pickles it, so it has to be arrays, numbers,
    text, and lists and dictionaries of these.
    """

    def __init__(
        self, kind: type, *, name: str, max_restarts: int, num_returns: int = 1, **options: Any
    ):
        """Ask for the process.

        Args:
            kind: the object's class, whose constructor takes nothing.
            name: is shown before the lines that the process prints.
            max_restarts: how often Ray starts it again, after losses of the process or its machine;
                -1: for ever.
            num_returns: how many things each method returns, which the store frees apart.
            options: of Ray's actors, such as `num_cpus` and `scheduling_strategy`.
        """
        import ray

        self._num_returns = num_returns
        # Ray repeats no call, so each loss is seen.
        options |= {"max_restarts": max_restarts, "max_task_retries": 0}
        holder: Any = ray.remote(_holder_of(kind)).options(**options)
        self._actor: Any = holder.remote(name, kind.__module__, kind.__qualname__, __version__)
        self._references: list[Any] = []

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of the object; see `RemoteProcess`."""
        call = self._actor.call.options(num_returns=self._num_returns)
        returned = call.remote(method, *arguments)
        self._references = returned if self._num_returns > 1 else [returned]

    def wait(self, seconds: float) -> tuple[Any, ...] | None:
        """Return what the method returned, or None after `seconds`; see `RemoteProcess`."""
        import ray
        from ray.exceptions import ActorDiedError, RayError, RayTaskError

        try:
            ready, _ = ray.wait(self._references, num_returns=self._num_returns, timeout=seconds)
            if len(ready) < self._num_returns:
                return None
            references, self._references = self._references, []
            return tuple(ray.get(references))
        except ImportError as error:  # which is a RayError too
            raise ConfigError(
                f"Ray: expected Sebulba {__version__} on all machines, got {error.cause}"  # type: ignore[attr-defined]
            ) from error
        except ActorDiedError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise ProcessGone(" ".join([lines[0], lines[-1]])) from error
        except RayTaskError:  # of a method
            raise
        except RayError as error:
            raise ProcessLost("its process died or cannot be reached") from error

    def kill(self) -> None:
        """End the process; no other is started."""
        import ray

        with contextlib.suppress(Exception):  # Ray may be gone.
            ray.kill(self._actor, no_restart=True)


def _holder_of(kind: type) -> type:
    """Return a class that Ray sends as code, since a machine may lack Sebulba, or this version.

    Ray's tools show it by the name of `kind`.
    """

    class Holder:
        def __init__(self, name: str, module: str, kind: str, version: str):
            self._name, self._of = name, (module, kind, version)
            self._held: Any = None

        def __repr__(self) -> str:
            return self._name

        def call(self, method: str, *arguments: Any) -> Any:
            if self._held is None:
                self._held = self._make()
            return getattr(self._held, method)(*arguments)

        def _make(self) -> Any:
            module, kind, version = self._of
            machine = platform.node()
            try:
                own = importlib.import_module("sebulba").__version__
                if own == version:
                    return getattr(importlib.import_module(module), kind)()
            except Exception as error:
                problem = f"{machine}, which cannot run it: {type(error).__name__}: {error}"
                raise ImportError(problem) from None
            raise ImportError(f"{own} on {machine}. Install the same version of everything")

    Holder.__name__ = Holder.__qualname__ = kind.__name__
    return Holder
