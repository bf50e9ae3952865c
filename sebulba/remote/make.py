"""Make the collectors of a ring whose last actors are in other processes."""

import collections
import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from sebulba.config import Config
from sebulba.config.loading import to_yaml
from sebulba.config.objects import check_importable
from sebulba.config.run_spec import queue_slots_per_actor
from sebulba.devices.memory import num_bytes
from sebulba.envs.base import Environment
from sebulba.envs.closing import close_environments
from sebulba.errors import ConfigError
from sebulba.processes.remote_process import RemoteProcess
from sebulba.remote import wire
from sebulba.remote.attendance import Attendance
from sebulba.remote.collector import RemoteCollector
from sebulba.remote.wire import Arrays
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.clocks import WallClock
from sebulba.ring.collectors import Collector
from sebulba.ring.local_collector import first_carry
from sebulba.ring.make import make_local_collector
from sebulba.ring.records import ActCarry, Collected
from sebulba.storage.run_dir import describe_software
from sebulba.types import Networks


class Processes(Protocol):
    """Starts processes, and hands networks to all of them at once."""

    def start(self, name: str) -> RemoteProcess:
        """Start a process that acts."""
        ...

    def share(self, arrays: Arrays) -> Any:
        """Return what stands for arrays among the arguments of a call."""
        ...

    @property
    def num_store_bytes(self) -> int | None:
        """The memory for what crosses, of the machine that has least; None: it has no bound."""
        ...


class RemoteCollectors:
    """Makes the collectors of a ring whose last `actor.remote` actors are in other processes."""

    def __init__(
        self,
        processes: Processes,
        config: Config,
        *,
        check: Callable[[], None] = lambda: None,
    ):
        """Start nothing yet.

        Args:
            processes: starts them.
            config: the run's settings.
            check: called while a new run waits for them; what it raises ends the wait.

        Raises:
            ConfigError: agent or environment are objects, which the processes cannot import.
        """
        check_importable(config)
        self._processes = processes
        self._check = check
        self._settings = {"config": to_yaml(config), "software": describe_software(config)}
        # Of the versions that actors may still ask for. Networks cross once a version.
        self._shared: collections.deque[tuple[Networks, Any]] = collections.deque(
            maxlen=2 + (config.policy_lag or 0)
        )
        self._lock = threading.Lock()
        self._carry: ActCarry | None = None  # of environments that were here for a moment
        self._like: Collected | None = None
        self._attendance = Attendance(
            has_local=config.actor.threads_per_device > 0, is_exact=config.has_fixed_order
        )

    def __call__(
        self,
        config: Config,
        functions: ActFunctions,
        *,
        global_actor_id: int,
        clock: WallClock,
        on_warning: Callable[[str], None],
        environment: Environment | None = None,
    ) -> Collector:
        """Make the collector of an actor; see `sebulba.ring.make.make_local_collector`."""
        run_spec = functions.run_spec
        local = functools.partial(
            make_local_collector,
            config,
            functions,
            global_actor_id=global_actor_id,
            clock=clock,
            on_warning=on_warning,
            environment=environment,
        )
        num_local = run_spec.num_actors - config.actor.remote
        if global_actor_id % run_spec.num_actors < num_local:
            return local()
        name = f"actor {global_actor_id}"

        def shapes(networks: Networks) -> Collected:
            """Return the shapes of what every remote actor collects, from environments here."""
            if self._like is None:
                template = local()
                try:
                    self._carry = template.begin(networks).carry
                    self._like = functions.shapes(networks, self._carry)
                finally:
                    closing = {"the environments of its shapes": template}
                    for problem in close_environments(closing, config.run.close_timeout_s):
                        on_warning(str(problem))
                self._check_store(config, self._like, networks, num_actors=run_spec.num_actors)
            return self._like

        def own_carry(networks: Networks) -> ActCarry:
            """Return a carry with the actor's state, and a row of any environments."""
            shapes(networks)
            assert self._carry is not None
            return first_carry(
                functions,
                networks,
                self._carry.env_step,
                run_seed=config.seed,
                global_actor_id=global_actor_id,
                env_state=self._carry.env_state,
            )

        settings = self._settings | {
            "actor": global_actor_id,
            "num_actors": run_spec.num_actors,
            "num_learner_devices": run_spec.num_learner_devices,
            "num_hosts": run_spec.num_hosts,
            "num_cpus": config.actor.remote_cpus,
            "uses_gpu": config.actor.remote_gpus > 0,
        }
        return RemoteCollector(
            self._processes.start(name),
            functions,
            name=name,
            settings=settings,
            share=self._share,
            shapes=shapes,
            first_carry=own_carry,
            clock=clock,
            on_warning=on_warning,
            max_replayed_cycles=config.actor.remote_max_replay,
            timeout_s=config.actor.remote_timeout_s,
            compile_timeout_s=config.run.compile_timeout_s,
            attendance=self._attendance,
            check=self._check,
        )

    def _check_store(
        self, config: Config, like: Collected, networks: Networks, *, num_actors: int
    ) -> None:
        """Check that what crosses has room: Ray would write the rest to a disk, without a word.

        Raises:
            ConfigError: it has not.
        """
        # In the deque, on its way to it, and being acted.
        num_trajectories = config.actor.remote * (2 + queue_slots_per_actor(config, num_actors))
        num_versions = self._shared.maxlen or 0
        needed = num_trajectories * num_bytes(like) + num_versions * num_bytes(networks)
        room = self._processes.num_store_bytes
        if room is not None and needed > room:
            raise ConfigError(
                f"actor.remote: expected an object store of {needed / 1e6:,.0f} MB, for"
                f" {num_trajectories} trajectories of {num_bytes(like) / 1e6:,.1f} MB and"
                f" {num_versions} versions of the networks of {num_bytes(networks) / 1e6:,.1f} MB,"
                f" got {room / 1e6:,.0f} MB. Start Ray with a larger object store, or"
                " reduce actor.num_envs or actor.trajectory_length"
            )

    def _share(self, networks: Networks) -> Any:
        """Return what stands for networks in a call."""
        with self._lock:
            for known, shared in self._shared:
                if known is networks:
                    return shared
            shared = self._processes.share(wire.pack(networks))
            self._shared.append((networks, shared))
            return shared
