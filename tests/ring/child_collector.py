"""A collector in a process of its own, to which only arrays and numbers cross."""

import multiprocessing
import os
import signal

import jax
import numpy as np

from sebulba.config.loading import load_config
from sebulba.devices.roles import assign_devices
from sebulba.pytree import from_arrays, to_arrays
from sebulba.ring.clocks import WallClock
from sebulba.ring.collectors import CollectorLost
from sebulba.ring.make import environment_maker, make_local_collector
from sebulba.ring.programs import make_programs
from sebulba.ring.records import Collected, Point, StreamBoundary, StreamStart


def _parts(overrides, global_actor_id):
    """Returns a collector and the networks of a config: for their structures, in both processes."""
    config = load_config("impala_catch", overrides)
    (device,) = jax.local_devices()[:1]
    roles = assign_devices(config.devices, [device], num_envs=config.actor.num_envs)
    environment = environment_maker(config, global_actor_id)(0)
    programs = make_programs(config, roles, environment.spec)
    environment.close()
    collector = make_local_collector(
        config,
        programs.act[device],
        global_actor_id=global_actor_id,
        clock=WallClock(),
        on_warning=print,
    )
    networks = jax.jit(programs.agent.init_networks)(jax.random.key(0))
    return collector, programs.agent.actor_networks(networks)


def _as_numpy(tree):
    return [np.asarray(leaf) for leaf in to_arrays(tree)]


def serve(connection, overrides, global_actor_id):
    """Act for the other end of a connection until it closes."""
    collector, like = _parts(overrides, global_actor_id)
    first = collector.begin(like)
    connection.send("ready")
    while True:
        networks, carry, cycle, attempt, began, has_ended, actions = connection.recv()
        point = Point(
            cycle=cycle,
            carry=from_arrays(carry, like=first.carry),
            boundary=StreamBoundary() if has_ended else None,
            attempt=attempt,
            began=None if began is None else StreamStart(cycle=began[0], attempt=began[1]),
            actions=actions,
        )
        collected = collector.collect(from_arrays(networks, like=like), point)
        connection.send(_as_numpy(collected))


class ChildCollector:
    """Acts in another process, which it starts again when it is gone."""

    def __init__(self, local, overrides, global_actor_id):
        """Start the process.

        Args:
            local: a collector that has begun, for the structures of what it collects.
            overrides: settings of impala_catch.
            global_actor_id: as that of the collector.
        """
        self._local = local
        self._arguments = (overrides, global_actor_id)
        self._like = None
        self._start()

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, *self._arguments), daemon=True)
        self._process.start()
        other.close()
        assert self._connection.recv() == "ready"

    def collect(self, networks, point, *, kill=False):
        """Act in the other process; `kill` it while it acts."""
        began = None if point.began is None else (point.began.cycle, point.began.attempt)
        if self._like is None:
            self._like = jax.eval_shape(self._local.act_within, networks, point.carry)
        try:
            self._connection.send(
                (
                    _as_numpy(networks),
                    _as_numpy(point.carry),
                    point.cycle,
                    point.attempt,
                    began,
                    point.boundary is not None,
                    point.actions,
                )
            )
            if kill:
                os.kill(self._process.pid, signal.SIGKILL)
            arrays = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            self._start()
            raise CollectorLost(f"process {self._process.pid} is gone") from error
        collected = from_arrays(arrays, like=self._like)
        assert isinstance(collected, Collected)
        return jax.device_put(collected, self._local.functions.device)

    def close(self):
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._local.close()

    def __getattr__(self, name):
        return getattr(self._local, name)
