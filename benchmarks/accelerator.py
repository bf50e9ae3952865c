"""Measure acting and learning on the devices that JAX finds, in about eight minutes.

    python -m benchmarks.accelerator [--suite ale] [--id pong] [--networks dqn deep] [--json FILE]

IMPALA on images. For each network, in float32 and in bfloat16, env steps per second of

- act cycles on the first device, stepped (with the transfer of each row) and fused, and stepped on
  the host's processor (`devices.actor: cpu`);
- updates;
- act cycles and updates at the same time: `overlap` is 2 if they do not slow each other down;
- a run from its first to its last learner cycle.

The first table has the device's limits: large matrix products, and transfers of large arrays. The
others have the shares of them that updates and transfers of rows reach. Of an update, the products
and convolutions of loss and gradients count, as in `sebulba compile`.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness, rings
from benchmarks.harness import Result, Series, Timed
from sebulba.aot.program import product_flops
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig
from sebulba.errors import ConfigError
from sebulba.references import Network
from sebulba.ring.make import made_ring
from sebulba.ring.records import Delivery
from sebulba.ring.ring import Ring
from sebulba.toolkit.settings import ComputeDtype
from sebulba.types import Clock, PyTree, Trajectory
from sebulba_agents.config import ImpalaConfig

_DTYPES: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
_TRANSFER = "transfer to the device: GB"


def make_config(arguments: argparse.Namespace, network: Network, dtype: ComputeDtype) -> Config:
    """Return the config of a run that acts and learns on the first device."""
    return Config(
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        env=EnvConfig(suite=arguments.suite, id=arguments.id),
        actor=ActorConfig(
            threads_per_device=1,
            num_envs=arguments.num_envs,
            trajectory_length=arguments.trajectory_length,
            cycle="stepped",
        ),
        agent=ImpalaConfig(network=network, compute_dtype=dtype, reward_clip=1.0),
    )


def measure(
    config: Config, limits: Mapping[str, Series], *, seconds: float, repeats: int
) -> Result:
    """Measure env steps per second of acting and learning, alone, together and in a run.

    Args:
        config: from `make_config`.
        limits: rates of the result of `measure_limits`.
        seconds: of each measurement, roughly.
        repeats: of each.
    """
    with contextlib.ExitStack() as made:
        acting = _acting(config, made)
        ring = acting["stepped"]
        work: dict[str, Callable[[], float | Timed]] = {}
        for name, each in acting.items():
            cycles = _cycles(rings.ActorsAlone(each, 1), seconds)
            work[f"acting, {name}"] = rings.ActorsAlone(each, cycles)
        update_cycles = _cycles(rings.UpdatesAlone(ring, 1), seconds)
        work["updates"] = rings.UpdatesAlone(ring, update_cycles)
        together = _Together(work["acting, stepped"], work["updates"])
        whole = rings.of_length(config, _rows(config) * max(4, update_cycles))
        rates = harness.interleave(work, repeats)
        overlap = Series(values=tuple(together.overlap() for _ in range(repeats)))
        run = harness.interleave({"a run": lambda: rings.run_ring(whole)}, repeats)
        shares = _shares(config, ring, rates, limits)
    return Result(
        name=f"{config.agent.network}, {config.agent.compute_dtype}",
        unit="env steps/s",
        rates=rates | run,
        ratios={"overlap": overlap} | shares,
        settings={"envs": config.actor.num_envs, "T": config.actor.trajectory_length},
    )


def measure_limits(*, repeats: int, size: int) -> Result:
    """Measure the device with matrix products of `size`², and with arrays as large."""
    rng = np.random.default_rng(0)
    host = rng.normal(size=(size, size)).astype(np.float32)
    device = jax.local_devices()[0]
    work: dict[str, Callable[[], float]] = {}
    for dtype in _DTYPES:
        matrix = jax.device_put(jnp.asarray(host, dtype), device)
        product = jax.jit(lambda x: x @ x)

        def multiply(matrix=matrix, product=product) -> float:
            jax.block_until_ready([product(matrix) for _ in range(10)])
            return 10 * 2 * size**3 / 1e9

        work[f"matrix product, {dtype}: GFLOP"] = multiply

    def send() -> float:
        for _ in range(10):
            jax.block_until_ready(jax.device_put(host, device))
        return 10 * host.nbytes / 1e9

    work[_TRANSFER] = send
    return Result(
        name="limits of the device",
        unit="a second",
        rates=harness.interleave(work, repeats),
        ratios={},
        settings={"matrix": f"{size}²"},
    )


def _acting(config: Config, made: contextlib.ExitStack) -> dict[str, Ring]:
    """Return a ring for each way of acting that works here; `made` closes them."""
    found = {"stepped": made.enter_context(made_ring(config))}
    others: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"fused": ({"cycle": "fused"}, {})}
    if jax.default_backend() != "cpu":
        others["stepped on the host's processor"] = ({}, {"actor": "cpu"})
    for name, (actor, devices) in others.items():
        changed = dataclasses.replace(
            config,
            actor=dataclasses.replace(config.actor, **actor),
            devices=dataclasses.replace(config.devices, **devices),
        )
        try:
            found[name] = made.enter_context(made_ring(changed))
        except ConfigError as error:
            print(f"not measured: acting, {name}: {error}", flush=True)
    return found


class _Together:
    """Two kinds of work, one after the other and at the same time."""

    def __init__(self, *work: Callable[[], float | Timed]):
        self._work = work
        self._pool = concurrent.futures.ThreadPoolExecutor(len(work))

    def overlap(self) -> float:
        """Return the time of both one after the other, over that of both at once."""
        begin = time.perf_counter()
        for each in self._work:
            each()
        middle = time.perf_counter()
        for future in [self._pool.submit(each) for each in self._work]:
            future.result()
        return (middle - begin) / (time.perf_counter() - middle)


def _cycles(one: Callable[[], int], seconds: float) -> int:
    """Return how many cycles take about `seconds`; the first one compiles."""
    one()
    begin = time.perf_counter()
    one()
    return max(1, round(seconds / (time.perf_counter() - begin)))


def _rows(config: Config) -> int:
    return config.actor.num_envs * config.actor.trajectory_length


def _shares(
    config: Config, ring: Ring, rates: Mapping[str, Series], limits: Mapping[str, Series]
) -> dict[str, Series]:
    """Return which shares of the device's limits updates and transfers of rows reach."""
    (item,) = rings.act_one_cycle(ring)
    row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(item.unroll.trajectory.env_steps))
    row_bytes /= config.actor.num_envs * (config.actor.trajectory_length + 1)
    flops = _flops(ring, item) / item.info.env_steps

    def share(rate: str, amount: float, limit: str) -> Series:
        factor = amount / 1e9 / limits[limit].median
        return Series(values=tuple(factor * value for value in rates[rate].values))

    product = f"matrix product, {config.agent.compute_dtype}: GFLOP"
    return {
        "acting, stepped: share of the transfers": share("acting, stepped", row_bytes, _TRANSFER),
        "updates: share of the matrix product": share("updates", flops, product),
    }


def _flops(ring: Ring, item: Delivery) -> float:
    """Return the floating-point operations of an update's products on a trajectory."""
    agent, num_envs = ring.programs.agent, ring.programs.run_spec.num_envs

    def learn(key: jax.Array, initial_state: PyTree, final_state: PyTree, trajectory: Trajectory):
        networks = agent.init_networks(key)
        experience = agent.update_experience(
            networks,
            agent.init_experience(networks, num_envs),
            initial_state,
            final_state,
            trajectory,
            jnp.int32(0),
        )
        return jax.grad(agent.loss, has_aux=True)(networks, experience, key, Clock.at())

    unroll = item.unroll
    parts = (unroll.initial_state, unroll.final_state, unroll.trajectory)
    jaxpr = jax.make_jaxpr(learn)(jax.random.key(0), *parts)
    # XLA's own count is None for the programs of a GPU.
    return sum(product_flops(jaxpr, jax.default_backend()).values())


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = harness.parser(__doc__)
    parser.add_argument("--suite", default="ale")
    parser.add_argument("--id", default="pong")
    parser.add_argument("--networks", nargs="+", default=["dqn", "deep"])
    parser.add_argument("--dtypes", nargs="+", choices=_DTYPES, default=list(_DTYPES))
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--trajectory-length", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--matrix-size", type=int, default=2048)
    arguments = parser.parse_args()
    harness.compile_once()
    limits = measure_limits(repeats=arguments.repeats, size=arguments.matrix_size)
    results = [limits]
    for network in arguments.networks:
        for dtype in arguments.dtypes:
            config = make_config(arguments, network, dtype)
            results.append(
                measure(config, limits.rates, seconds=arguments.seconds, repeats=arguments.repeats)
            )
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
