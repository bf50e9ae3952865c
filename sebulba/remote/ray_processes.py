"""Processes that Ray starts, on this machine or on those of a cluster."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from sebulba.config import ActorConfig
from sebulba.errors import ConfigError
from sebulba.processes.ray_cluster import ADDRESS_VARIABLE, RayShare, ray_cluster, room_for
from sebulba.processes.ray_process import RayProcess
from sebulba.remote.process import ActingProcess
from sebulba.remote.wire import Arrays


@contextlib.contextmanager
def ray_processes(
    actor: ActorConfig, *, on_message: Callable[[str], None]
) -> Iterator["RayProcesses"]:
    """Join the Ray cluster of `RAY_ADDRESS`, or start one here, for as long as the run lasts.

    Args:
        actor: `actor`, of which the remote actors are used.
        on_message: takes a line of text.

    Raises:
        ConfigError: Ray is not installed, there is no such cluster, or too few GPUs are here.
    """
    share = RayShare(num_cpus=actor.remote_cpus, num_gpus=actor.remote_gpus)
    with ray_cluster(
        # Here actors may be more than CPUs: they share them, as threads do.
        num_cpus=actor.remote * actor.remote_cpus,
        wanted=f"actor.remote: expected 0 without Ray, got {actor.remote}",
    ) as where:
        on_message(f"remote actors: {actor.remote} with {share} each on {where}")
        if (room := room_for(share)) < actor.remote:
            text = f"room for {room} of {actor.remote} remote actors with {share} each"
            if not os.environ.get(ADDRESS_VARIABLE):
                raise ConfigError(f"actor.remote_gpus: this machine has {text}")
            on_message(f"the cluster has {text}: the others wait until machines join")
        yield RayProcesses(share)


class RayProcesses:
    """Starts processes with Ray, and puts networks into its object store."""

    def __init__(self, share: RayShare):
        """Start nothing yet; `share` is what each process asks of its machine."""
        self._of_each = share

    def start(self, name: str) -> RayProcess:
        """Start a process that acts."""
        return RayProcess(
            ActingProcess, name=name, max_restarts=-1, num_returns=3, **self._of_each.options
        )

    def share(self, arrays: Arrays) -> Any:
        """Put arrays into the object store; return the reference to them."""
        import ray

        return ray.put(arrays)

    @property
    def num_store_bytes(self) -> int | None:
        """The object store of the machine that has the smallest."""
        import ray

        return int(
            min(
                node["Resources"].get("object_store_memory", 0.0)
                for node in ray.nodes()
                if node["Alive"]
            )
        )
