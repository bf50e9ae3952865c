"""Processes that Ray starts, on this machine or on those of a cluster."""

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sebulba.config import ActorConfig
from sebulba.config.extras import install_command
from sebulba.errors import ConfigError
from sebulba.process import call_before_end
from sebulba.remote.collector import ProcessGone, ProcessLost
from sebulba.remote.process import ActingProcess
from sebulba.remote.wire import Arrays, Record

_ADDRESS = "RAY_ADDRESS"
_CONNECT_TIMEOUT_S = 10.0
_UNAVAILABLE_S = 0.5  # between calls to a process that cannot be reached
# Ray shows the lines of remote processes, and its own. Its own about a death have up to 1,200
# characters; ours names actor, machine and cycle.
_HIDDEN_LINES = r"^A worker died or was killed while executing a task|\(raylet\) worker\.cc:"


@contextlib.contextmanager
def ray_processes(
    actor: ActorConfig, *, on_message: Callable[[str], None]
) -> Iterator["RayProcesses"]:
    """Join the Ray cluster of `RAY_ADDRESS`, or start one here, for as long as the run lasts.

    Args:
        actor: `actor`, of which the remote actors are used.
        on_message: takes a line of text.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            f"actor.remote: expected 0 without Ray, got {actor.remote}. Run"
            f" {install_command('ray')}"
        )
    # Read when Ray is imported, or prints.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _HIDDEN_LINES)
    if not sys.stderr.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    import ray

    address = os.environ.get(_ADDRESS) or None
    is_ours = not ray.is_initialized()  # A notebook may have connected.
    if is_ours:
        options: dict[str, Any] = {"address": address, "logging_level": "ERROR"}
        if address is None:
            # Here actors may be more than CPUs: they share them, as threads do.
            cpus = max(os.cpu_count() or 1, actor.remote * actor.remote_cpus)
            # Without an address, Ray would join a cluster that somebody has started here.
            options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        else:
            _check_reachable(address)
        with _keeping_signal_handlers():
            try:
                ray.init(**options)
            except (ConnectionError, OSError, ValueError, RuntimeError) as error:
                raise _refused(address, error) from error
    on_message(
        f"remote actors: {actor.remote} × {actor.remote_cpus} CPUs on"
        f" {'Ray here' if address is None else f'the Ray cluster at {address}'}"
    )
    forget = call_before_end(ray.shutdown) if is_ours else None
    try:
        yield RayProcesses(actor)
    finally:
        if forget is not None:
            forget()
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check that somebody listens at `host:port`; Ray would try for minutes.

    Raises:
        ConfigError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):  # Such as `auto`, which Ray knows.
        return
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S):
            pass
    except OSError as error:
        raise _refused(address, error) from error


def _refused(address: str | None, error: Exception) -> ConfigError:
    return ConfigError(
        f"{_ADDRESS}: expected the address of a Ray cluster, or none to start one here, got"
        f" {address}: {error}. A cluster with a token takes who has it in ~/.ray/auth_token and"
        " sets RAY_AUTH_MODE=token"
    )


class RayProcesses:
    """Starts processes with Ray, and puts networks into its object store."""

    def __init__(self, actor: ActorConfig):
        """Start nothing yet; of `actor`, what a remote actor asks of Ray is used."""
        self._options = {"num_cpus": actor.remote_cpus, "num_gpus": actor.remote_gpus}

    def start(self, name: str) -> "RayProcess":
        """Start a process that acts."""
        import ray

        # Ray starts it again for ever. It repeats no call, so each death is seen and counted.
        options = {**self._options, "max_restarts": -1, "max_task_retries": 0}
        return RayProcess(ray.remote(ActingProcess).options(**options).remote(name))

    def share(self, arrays: Arrays) -> Any:
        """Put arrays into the object store; return the reference to them."""
        import ray

        return ray.put(arrays)

    @property
    def num_store_bytes(self) -> int | None:
        """The object store of the machine that has the smallest."""
        import ray

        stores = [node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes()]
        return int(min(stores))


class RayProcess:
    """A process that Ray has started, and starts again."""

    def __init__(self, actor: Any):
        """Take the handle of a Ray actor, which is an `ActingProcess`."""
        self._actor = actor
        self._references: list[Any] = []

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method; see `RemoteProcess`."""
        # Three objects, which the store can free apart.
        remote = getattr(self._actor, method).options(num_returns=3)
        self._references = remote.remote(*arguments)

    def wait(self, seconds: float) -> tuple[Record, Arrays | None, Arrays | None] | None:
        """Return what the method returned, or None after so many seconds; see `RemoteProcess`."""
        import ray
        from ray.exceptions import ActorDiedError, RayError

        try:
            ready, _ = ray.wait(self._references, num_returns=3, timeout=seconds)
            if len(ready) < len(self._references):
                return None
            references, self._references = self._references, []
            first, second, third = ray.get(references)
            return first, second, third
        except ActorDiedError as error:
            # Ray would start it again if it had died, so its class could not be loaded there.
            raise ProcessGone(
                "remote actors: a process of Ray cannot run sebulba, which has to be installed on"
                f" all machines in the same version: {_lines(error)}"
            ) from error
        except RayError as error:
            time.sleep(_UNAVAILABLE_S)
            raise ProcessLost("its process died or cannot be reached") from error

    def kill(self) -> None:
        """End the process; no other is started."""
        import ray

        with contextlib.suppress(Exception):  # Ray may be gone.
            ray.kill(self._actor, no_restart=True)


def _lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([lines[0], lines[-1]])


@contextlib.contextmanager
def _keeping_signal_handlers() -> Iterator[None]:
    """Put the handlers back that `ray.init` replaces.

    It also starts processes, which Python warns of with JAX's threads about. They run another
    program at once, so no lock is copied that a thread holds.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            yield
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread, where none was replaced
            for number, handler in handlers.items():
                signal.signal(number, handler)
