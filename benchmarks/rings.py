"""Rings, run for a number of env steps, and their actors or learner alone for comparison."""

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import Result, Timed
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig
from sebulba.config.loading import load_config
from sebulba.devices.xla_workarounds import keep_freed_memory
from sebulba.ring.make import made_ring
from sebulba.ring.records import Delivery
from sebulba.ring.ring import Ring
from sebulba.ring.running import run

TRAJECTORY_LENGTH = 20


def measure_config(doc: str, measure: Callable[..., Result], *, env_steps: int) -> None:
    """Run a benchmark of the config on the command line; unknown flags are the config's.

    Args:
        doc: the benchmark's docstring, shown by `--help`.
        measure: takes the config, and `env_steps` and `repeats` by name.
        env_steps: default number of env steps per repeat.
    """
    parser = harness.parser(doc)
    parser.add_argument("config", help="YAML file")
    parser.add_argument("--env-steps", type=int, default=env_steps, help="env steps per repeat")
    arguments, flags = parser.parse_known_args()
    config = load_config(arguments.config, flags)
    if config.run.keep_memory:
        keep_freed_memory()
    harness.compile_once()
    result = measure(config, env_steps=arguments.env_steps, repeats=arguments.repeats)
    harness.report([result], arguments.json)


def canned_config(
    agent: Any, *, num_envs: int, threads: int = 1, **options: float | bool
) -> Config:
    """Return the config of a run on `CannedEnvironment`s, with one device.

    `options` are the environment's.
    """
    return Config(
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        env=EnvConfig(suite="benchmarks.environments:make", id="Canned", options=options),
        actor=ActorConfig(
            threads_per_device=threads,
            num_envs=num_envs,
            trajectory_length=TRAJECTORY_LENGTH,
            cycle="stepped",
        ),
        agent=agent,
    )


def of_length(config: Config, env_steps: int) -> Config:
    """Return the config with a length of `env_steps` and without another goal."""
    run_config = dataclasses.replace(config.run, total_env_steps=env_steps, stop_at_return=None)
    return dataclasses.replace(config, run=run_config)


def run_ring(config: Config) -> Timed:
    """Run a new ring to its end; measure env steps per second, without start-up and compilation."""
    with made_ring(config) as ring:
        run(ring, mode=config.run.mode)
    return rate_of(ring)


def rate_of(ring: Ring) -> Timed:
    """Return the env steps per second of a ring that has ended, without start-up."""
    rate = ring.progress.steps_per_second
    if rate is None:
        raise ValueError("expected a run longer than its compilation; raise --env-steps")
    return Timed(amount=rate, seconds=1.0)


class ActorsAlone:
    """Work: a ring's actors, each in its thread, without a learner."""

    def __init__(self, ring: Ring, cycles: int):
        self._ring = ring
        self._cycles = cycles
        self._pool = concurrent.futures.ThreadPoolExecutor(len(ring.actors))

    def __call__(self) -> int:
        """Run the act cycles of every actor, and return the env steps."""
        return sum(self._pool.map(self._act, range(len(self._ring.actors))))

    def _act(self, actor_id: int) -> int:
        items = itertools.islice(act_alone(self._ring, actor_id), self._cycles)
        return sum(item.info.env_steps for item in items)


class UpdatesAlone:
    """Work: a ring's learner cycles, each on the same trajectories."""

    def __init__(self, ring: Ring, cycles: int):
        self._ring = ring
        self._cycles = cycles
        self._items = act_one_cycle(ring)

    def __call__(self) -> int:
        """Run the learner cycles, and return the env steps learned from."""
        for _ in range(self._cycles):
            update(self._ring, self._items)
        return self._cycles * sum(item.info.env_steps for item in self._items)


def act_one_cycle(ring: Ring) -> list[Delivery]:
    """Collect the trajectories of one learner cycle, in this thread."""
    return [next(act_alone(ring, actor_id)) for actor_id in ring.schedule.actors_in_turn(0)]


def update(ring: Ring, items: Sequence[Delivery]) -> None:
    """Run a learner cycle's updates, without what the ring does around them, and wait for them."""
    unrolls = [item.unroll for item in items]
    ring.learner.update(unrolls, env_steps=ring.progress.env_steps)


def act_alone(ring: Ring, actor_id: int) -> Iterator[Delivery]:
    """Yield an actor's trajectories without end, all acted with the newest networks at the start.

    It needs no learner: nothing is taken from a deque or put into one.
    """
    actor = ring.actors[actor_id]
    networks = ring.learner.networks_on(actor.device)
    while True:
        yield actor.act(lambda: (0, networks), ring.ledger)
