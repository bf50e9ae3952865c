"""The hosts of one run on the machines of a Ray cluster. Imports no jax."""

import contextlib
import pathlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sebulba.hosts.rendezvous import TOKEN_VARIABLE
from sebulba.process import EXIT_SIGNAL_BASE, handled
from sebulba.processes.ray_cluster import RayShare
from sebulba.processes.ray_process import RayProcess
from sebulba.processes.ray_runs import (
    MAX_RESTARTS,
    order_of,
    prefixed_by,
    run_cluster,
    say,
)
from sebulba.processes.remote_runs import EXIT_LOST, RemoteRun
from sebulba.processes.run_holder import RunHolder, with_resume
from sebulba.storage.names import HOSTS

_POLL_S = 0.2
_GRACE_S = 15.0
_FEWER_S = 10.0  # for each smaller number of machines, which are there or are not


def run_hosts_on_ray(
    argv: Sequence[str],
    *,
    num_hosts: int,
    share: RayShare,
    run_dir: pathlib.Path,
    heartbeat_timeout_s: float,
    min_hosts: int = 1,
    wait_s: float = 60.0,
    variables: dict[str, str] | None = None,
) -> int:
    """Train on several hosts, each on another machine, and resume after the loss of one.

    When a host's process or machine is lost, the others notice and end. The run is then resumed on
    as many machines as there are, at most `num_hosts`, and at most `MAX_RESTARTS` times. On a Ray
    that is started here, all hosts are on this machine.

    Args:
        argv: the command line of `sebulba.train`, with absolute paths.
        num_hosts: the number of hosts.
        share: what each asks for.
        run_dir: the run's directory, which all machines and this one have to share.
        heartbeat_timeout_s: `distributed.heartbeat_timeout_s`.
        min_hosts: on fewer, the run is not resumed until a machine joins.
        wait_s: seconds after a loss in which as many machines as before are waited for.
        variables: environment variables of the hosts, in addition to those of the machines.

    Returns:
        0 if all ended with 0, else the exit code of the first that failed.

    Raises:
        ConfigError: Ray is not installed, there is no such cluster, or a machine cannot run a host.
    """
    signals: list[int] = []
    grace_s = 2.0 * heartbeat_timeout_s + _GRACE_S  # until the others have noticed a loss
    with (
        run_cluster(share, num_runs=num_hosts) as is_here,
        handled(lambda number, frame: signals.append(number)),
    ):
        count, num_losses = num_hosts, 0
        while True:
            least = min_hosts if num_losses else num_hosts
            machines = _machines(
                num_hosts, least, share, is_here=is_here, wait_s=wait_s, signals=signals
            )
            with machines as places:
                if not places:
                    return EXIT_SIGNAL_BASE + signals[-1]
                if len(places) != count:
                    say(f"hosts: {len(places)} instead of {count}")
                count = len(places)
                hosts = _start(
                    with_resume(argv, run_dir) if num_losses else argv,
                    places,
                    share,
                    run_dir=run_dir,
                    is_again=num_losses > 0,
                    variables=variables or {},
                )
                code = _wait(hosts, signals, grace_s=grace_s) if hosts else EXIT_LOST
            lost = [str(number) for number, host in enumerate(hosts) if host.is_lost]
            if (hosts and not lost) or signals or num_losses == MAX_RESTARTS:
                return code
            num_losses += 1
            say(
                f"lost host {', '.join(lost or '0')}: the run is resumed from its newest checkpoint"
                f" (restart {num_losses} of at most {MAX_RESTARTS})"
            )


@contextlib.contextmanager
def _machines(
    num_hosts: int,
    least: int,
    share: RayShare,
    *,
    is_here: bool,
    wait_s: float,
    signals: Sequence[int],
) -> Iterator[list[Any]]:
    """Wait for as many machines as possible, and hold a part of each; none if a signal comes."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": share.num_cpus, **({"GPU": share.num_gpus} if share.num_gpus else {})}
    strategy = "PACK" if is_here else "STRICT_SPREAD"
    count, has_waited, group = num_hosts, False, None
    try:
        while not signals:
            group = placement_group([bundle] * count, strategy)
            deadline = time.monotonic() + (wait_s if count == num_hosts else _FEWER_S)
            is_ready = group.wait(1.0)
            while not (is_ready or signals or time.monotonic() > deadline):
                is_ready = group.wait(1.0)
            if is_ready:
                yield [PlacementGroupSchedulingStrategy(group, i) for i in range(count)]
                return
            remove_placement_group(group)
            group = None
            if not has_waited:
                say(f"the cluster has no {num_hosts} machines with {share} each: waiting for them")
            has_waited = True
            count = num_hosts if count == least else count - 1
        yield []
    finally:
        if group is not None:
            with contextlib.suppress(Exception):  # Ray may be gone.
                remove_placement_group(group)


def _start(
    argv: Sequence[str],
    places: Sequence[Any],
    share: RayShare,
    *,
    run_dir: pathlib.Path,
    is_again: bool,
    variables: dict[str, str],
) -> list[RemoteRun]:
    """Ask for the hosts to be started; returns none if the first one's machine is lost now."""
    if (address := _free_address(places[0], share)) is None:
        return []
    connection = [
        "--distributed.mode=manual",
        f"--distributed.coordinator={address}",
        f"--distributed.num-processes={len(places)}",
    ]
    variables = {**variables, TOKEN_VARIABLE: secrets.token_hex(16)}
    hosts = []
    for number, place in enumerate(places):
        order = order_of(
            [*argv, *connection, f"--distributed.process-id={number}"],
            share,
            run_dir=run_dir / HOSTS / str(number) if number else run_dir,
            variables=variables,
        )
        name = str(number)
        # Ray starts no other process: all hosts have to start again.
        holder = RayProcess(
            RunHolder,
            name=f"host {name}",
            max_restarts=0,
            scheduling_strategy=place,
            **share.options,
        )
        host = RemoteRun(
            f"host {name}",
            order,
            holder,
            on_line=prefixed_by(name),
            on_message=say,
            is_again=is_again,
        )
        hosts.append(host)
    return hosts


def _free_address(place: Any, share: RayShare) -> str | None:
    """Return where other machines reach one of the machines, with a free port; None: it is lost."""
    import ray
    from ray.exceptions import RayError

    def free_address() -> str:  # Ray sends it as code, since a machine may lack Sebulba.
        import socket

        import ray

        ip = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.bind((ip, 0))
            port = probe.getsockname()[1]
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    options = {"num_cpus": share.num_cpus, "scheduling_strategy": place, "max_retries": 0}
    try:
        address: str = ray.get(ray.remote(free_address).options(**options).remote())
    except RayError:
        return None
    return address


def _wait(hosts: Sequence[RemoteRun], signals: Sequence[int], *, grace_s: float) -> int:
    """Wait for all hosts; `grace_s` after the first failure, end the others."""
    first_failure, deadline, num_sent = 0, float("inf"), 0
    try:
        while any(host.code is None for host in hosts):
            time.sleep(_POLL_S)
            new, num_sent = signals[num_sent:], len(signals)
            for host in hosts:
                for number in new:
                    host.send_signal(number)
                host.look()
                if host.code and not first_failure:
                    first_failure, deadline = host.code, time.monotonic() + grace_s
            if time.monotonic() > deadline:
                break
    finally:
        for host in hosts:
            if host.code is None:
                host.end(EXIT_LOST)
    return first_failure
