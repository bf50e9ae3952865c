"""Connects the hosts of a run, compares them, and ends them when one is lost.

`jax.distributed` connects them. During a run only gradients and the few numbers of
`sebulba.hosts.agreement` cross between hosts.
"""

import contextlib
import ctypes
import itertools
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src.clusters import ClusterEnv
from jax._src.distributed import global_state

from sebulba.config.schema import DistributedConfig
from sebulba.devices.xla_flags import set_num_cpu_threads
from sebulba.errors import ConfigError
from sebulba.hosts.rendezvous import BIND_VARIABLE, TOKEN_VARIABLE, wait_for_processes
from sebulba.process import EXIT_NOT_JOINED

_LOCAL_DEVICES_VARIABLE = "JAX_LOCAL_DEVICE_IDS"
_POLL_MS = 1000
_gathers = itertools.count()  # each gather has its own keys; all hosts count alike
_meetings = itertools.count()  # likewise
# C holds a pointer to the handler, so Python must never free it.
_abort_handlers: list[Callable[[int], None]] = []


def connect(config: DistributedConfig) -> None:
    """Connect this process with the others; call before any device is used.

    Install signal handlers afterwards, since `jax.distributed` may replace that of SIGTERM.

    Raises:
        ConfigError: no cluster was detected, or the coordinator's port is in use.
        JoinError: the processes did not find each other in time.
    """
    if config.effective_mode == "off":
        return
    set_num_cpu_threads(num_devices=max(1, jax.config.jax_num_cpu_devices))  # type: ignore[attr-defined]
    place = _place(config)
    address, num_processes, process_id = place
    bind = _bind_address()
    if address is not None and num_processes is not None and process_id is not None:
        token = os.environ.pop(TOKEN_VARIABLE, "")  # no environment needs it
        bind = wait_for_processes(
            address,
            num_processes=num_processes,
            process_id=process_id,
            timeout_s=config.join_timeout_s,
            token=token,
            bind=bind,
        )
        if not token and process_id == 0:
            with contextlib.suppress(OSError, ValueError):  # nobody may be reading
                print(
                    f"sebulba: {TOKEN_VARIABLE} is not set, so whoever reaches {bind} could have"
                    " taken the place of a process (docs/security.md)",
                    file=sys.stderr,
                )
    # A process may still end between this and the end of `initialize`.
    _exit_on_abort(EXIT_NOT_JOINED, lambda: "sebulba: lost contact with a process that had joined")
    # With its preemption service JAX swallows SIGTERM. `Agreement` stops the hosts together.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            coordinator_bind_address=bind,
            num_processes=num_processes,
            process_id=process_id,
            local_device_ids=_local_device_ids(config),
            cluster_detection_method=None if None in place else "deactivate",
            initialization_timeout=math.ceil(config.join_timeout_s),
            heartbeat_timeout_seconds=config.heartbeat_timeout_s,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"distributed.mode: {config.effective_mode}: {str(error).splitlines()[0]}. auto expects"
            " Slurm, Open MPI, Kubernetes or a TPU pod; manual expects distributed.coordinator,"
            " distributed.num_processes and distributed.process_id"
        ) from error


def _local_device_ids(config: DistributedConfig) -> list[int] | None:
    if config.local_devices is not None:
        return list(config.local_devices)
    # Under Slurm and Open MPI, JAX takes only the GPU with the process's local rank unless it gets
    # a list; an empty list means every visible device.
    return None if _LOCAL_DEVICES_VARIABLE in os.environ else []


def _place(config: DistributedConfig) -> tuple[str | None, int | None, int | None]:
    """Return coordinator, number of processes and this one's number; None: unknown."""
    if config.effective_mode == "manual":
        return config.coordinator, config.num_processes, config.process_id
    if (place := _place_from_variables()) is not None:
        return place
    # `initialize` would detect them itself, too late to check them.
    address, num_processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
        os.environ.get("JAX_COORDINATOR_ADDRESS"),
        None,
        None,
        local_device_ids=[],
        cluster_detection_method=None,
        initialization_timeout=math.ceil(config.join_timeout_s),
    )
    return address, num_processes, process_id


def _place_from_variables() -> tuple[str, int, int] | None:
    """Return the place that environment variables give, such as those of an indexed Job.

    JAX would ask the API of Kubernetes, for which a pod needs an account that may read pods.
    """
    address, count = os.environ.get("JAX_COORDINATOR_ADDRESS"), os.environ.get("JAX_NUM_PROCESSES")
    number = os.environ.get("JAX_PROCESS_ID", os.environ.get("JOB_COMPLETION_INDEX"))
    if address is None or count is None or number is None:
        return None
    is_port = re.fullmatch(r".+:[0-9]{1,5}", address) is not None
    if not (is_port and count.isdecimal() and number.isdecimal() and int(number) < int(count)):
        raise ConfigError(
            "distributed.mode: auto: expected host:port in JAX_COORDINATOR_ADDRESS, and in"
            " JAX_PROCESS_ID or JOB_COMPLETION_INDEX less than in JAX_NUM_PROCESSES, got"
            f" {address!r}, {number!r} and {count!r}"
        )
    return address, int(count), int(number)


def _bind_address() -> str | None:
    """Return where process 0 listens if that is not the coordinator's address."""
    address = os.environ.get(BIND_VARIABLE)
    if address is not None and re.fullmatch(r".+:[0-9]{1,5}", address) is None:
        raise ConfigError(
            f"{BIND_VARIABLE}: expected host:port, such as [::]:8476, got {address!r}"
        )
    return address


def is_first() -> bool:
    """Return whether this host writes the files of the whole run: metrics, config, summary."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Return whether the run has more than one host."""
    # `jax.process_count` would make JAX look for devices, here and on every other host.
    return jax.distributed.is_initialized() and (global_state.num_processes or 1) > 1


def place() -> tuple[int, int]:
    """Return the number of this host, and how many there are."""
    if not are_several():
        return 0, 1
    return global_state.process_id, global_state.num_processes


def gather_texts(text: str) -> list[str]:
    """Return the texts of all hosts, in their order; every host must call this equally often.

    Through the coordination service: it needs no devices, so hosts can gather what keeps these from
    working together.
    """
    if not are_several():
        return [text]
    number, (own, num_hosts) = next(_gathers), place()
    _client().key_value_set_bytes(_key(number, own), text.encode())
    return [_await_text(_key(number, host)) for host in range(num_hosts)]


def _client() -> Any:
    """Return the client of the coordination service, which `jax.distributed` has started."""
    return global_state.client


def _key(gather: int, host: int) -> str:
    return f"sebulba/{gather}/{host}"


def _await_text(key: str) -> str:
    # Another host may need minutes to read its checkpoint; one that is lost ends this process.
    while True:
        try:
            return _client().blocking_key_value_get_bytes(key, _POLL_MS).decode()
        except jax.errors.JaxRuntimeError as error:
            # Between two waits, Python handles signals.
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def meet(within_s: float, *, may_wait: Callable[[], bool]) -> None:
    """Wait for a limited time until every host has called this as often.

    Args:
        within_s: in seconds.
        may_wait: asked every second; False ends the wait.
    """
    if not are_several():
        return
    number, (own, num_hosts) = next(_meetings), place()
    _client().key_value_set_bytes(f"sebulba/met/{number}/{own}", b"")
    deadline, missing = time.monotonic() + within_s, set(range(num_hosts))
    while missing and may_wait() and time.monotonic() < deadline:
        host = min(missing)
        try:
            _client().blocking_key_value_get_bytes(f"sebulba/met/{number}/{host}", _POLL_MS)
            missing.remove(host)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                return  # A host is lost, which ends this process.


def check_equal(what: Mapping[str, str]) -> None:
    """Check that all hosts have the same values, such as configs and versions.

    Raises:
        ConfigError: a host differs from host 0; on every host.
    """
    lines = "\n".join(f"{name}\0{value}" for name, value in what.items())
    first, *others = (
        dict(line.split("\0", 1) for line in text.splitlines()) for text in gather_texts(lines)
    )
    for number, other in enumerate(others, start=1):
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise ConfigError(
                    f"hosts: expected {name} to be equal on all, got {first.get(name)} on host 0"
                    f" and {other.get(name)} on host {number}"
                )


def exit_when_lost(code: int, describe: Callable[[], str]) -> None:
    """Make the process print `describe()` and exit with `code` when it loses the other hosts."""
    if are_several():
        _exit_on_abort(code, describe)


def _exit_on_abort(code: int, describe: Callable[[], str]) -> None:
    # When a host misses its heartbeats or the coordinator is gone, a C++ thread of XLA's client
    # aborts this process. SIGABRT is the only hook. Python's `signal` would merely queue a handler
    # for the main thread, and `abort` does not wait for that.
    def on_abort(number: int) -> None:
        try:
            sys.stderr.write(f"\n{describe()}\n")
            sys.stderr.flush()
        finally:
            os._exit(code)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
    _abort_handlers.append(handler)
    ctypes.CDLL(None).signal(int(signal.SIGABRT), handler)


def all_end() -> bool:
    """Return whether all hosts call this, so that none takes the exit of another for a failure."""
    try:
        _client().wait_at_barrier("sebulba/end", 5_000)  # ms
    except jax.errors.JaxRuntimeError:
        return False
    return True


def disconnect() -> None:
    """Wait for all hosts, so that none takes the exit of another for a failure; then disconnect."""
    jax.distributed.shutdown()
