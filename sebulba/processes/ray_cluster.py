"""The Ray cluster that a command uses: one that is running, or one that it starts here and ends."""

import contextlib
import dataclasses
import importlib.util
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from sebulba.config.extras import install_command
from sebulba.errors import ConfigError
from sebulba.process import call_before_end

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Environment variable with the address of a cluster that runs; without it, one is started here."""

_CONNECT_TIMEOUT_S = 10.0
# Ray shows the lines of remote processes, and its own. Its own about a death have up to 1,200
# characters; ours names actor, machine and cycle.
_HIDDEN_LINES = r"^A worker died or was killed while executing a task|\(raylet\) worker\.cc:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayShare:
    """What a process asks of the machine that Ray chooses for it."""

    num_cpus: int = 1
    num_gpus: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """What Ray calls it."""
        return {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}

    def __str__(self) -> str:
        parts = [f"{self.num_cpus} CPU{'s' if self.num_cpus > 1 else ''}"]
        if self.num_gpus:
            parts.append(f"{self.num_gpus:g} GPU{'s' if self.num_gpus > 1 else ''}")
        return " and ".join(parts)


@contextlib.contextmanager
def ray_cluster(*, num_cpus: int, wanted: str, shows_logs: bool = True) -> Iterator[str]:
    """Join the Ray cluster of `RAY_ADDRESS`, or start one here, for as long as the `with` lasts.

    Args:
        num_cpus: CPUs that a Ray which is started here counts at least. What runs there shares the
            machine's CPUs.
        wanted: what was asked for, which is the beginning of an error if Ray is not installed.
        shows_logs: whether Ray prints what its processes print, and that they died.

    Yields:
        Where Ray runs, in words.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"{wanted}. Run {install_command('ray')}")
    # Read when Ray is imported, or prints.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _HIDDEN_LINES)
    if not sys.stderr.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    import ray

    address = os.environ.get(ADDRESS_VARIABLE) or None
    is_ours = not ray.is_initialized()  # A notebook may have connected.
    if is_ours:
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": shows_logs}
        if address is None:
            num_cpus = max(os.cpu_count() or 1, num_cpus)
            # Without an address, Ray would join a cluster that somebody else runs on this machine.
            options |= {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        else:
            options["address"] = address
            _check_reachable(address)
        with _keeping_signal_handlers():
            try:
                ray.init(**options)
            except (ConnectionError, OSError, ValueError, RuntimeError) as error:
                raise _refused(address, error) from error
    forget = call_before_end(ray.shutdown) if is_ours else None
    try:
        yield "Ray here" if address is None else f"the Ray cluster at {address}"
    finally:
        if forget is not None:
            forget()
            ray.shutdown()


def room_for(share: RayShare) -> int:
    """Return how many processes with a share the machines of the cluster have room for in all."""
    import ray

    wanted = {"CPU": share.num_cpus, "GPU": share.num_gpus}
    return sum(
        # Ray counts in parts of 1e-4, so ten tenths of a GPU are one.
        min(
            int(node["Resources"].get(name, 0) / each + 1e-4)
            for name, each in wanted.items()
            if each
        )
        for node in ray.nodes()
        if node["Alive"]
    )


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
        f"{ADDRESS_VARIABLE}: expected the address of a Ray cluster, or none to start one here, got"
        f" {address}: {' '.join(str(error).split())}. A cluster with a token takes who has it in"
        " ~/.ray/auth_token and sets RAY_AUTH_MODE=token"
    )


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
