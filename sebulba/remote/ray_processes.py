"""Processes that Ray starts, on this machine or on those of a cluster."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from sebulba.config import ActorConfig
from sebulba.processes.ray_cluster import ray_cluster
from sebulba.remote.collector import ProcessGone, ProcessLost
from sebulba.remote.process import ActingProcess
from sebulba.remote.wire import Arrays, Record

_UNAVAILABLE_S = 0.5  # between calls to a process that cannot be reached


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
    with ray_cluster(
        # Here actors may be more than CPUs: they share them, as threads do.
        num_cpus=actor.remote * actor.remote_cpus,
        wanted=f"actor.remote: expected 0 without Ray, got {actor.remote}",
    ) as where:
        on_message(f"remote actors: {actor.remote} × {actor.remote_cpus} CPUs on {where}")
        yield RayProcesses(actor)


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
