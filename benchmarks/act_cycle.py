"""Measure act cycles: env steps per second of acting alone, for every kind of act cycle.

    python -m benchmarks.act_cycle [--workloads envpool pong-ale …] [--threads 1 2] [--json FILE]

CartPole has an MLP of five tanh layers of 200, 16 environments per thread and 100 steps per cycle;
Pong has DQN's network, 64 environments per thread and 20 steps per cycle. All variants are first
checked to give the same trajectories. For comparison: the environment alone, the inference alone
(stepped: a jitted act per vector step; fused: a jitted scan), their serial limit
1 / (1/environment + 1/inference), and for fused cycles a jitted loop of both that stores no rows.
The naive loop of `benchmarks.eager_cycle` runs in one thread.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from benchmarks import alone, harness
from benchmarks.eager_cycle import EagerCycle
from benchmarks.harness import Result, Series
from benchmarks.policy_gradient import PolicyGradient, PolicyGradientConfig
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.ring.act_cycle import ActCycle
from sebulba.ring.clocks import WallClock
from sebulba.ring.records import ActCarry
from sebulba.ring.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.types import EnvStep, Networks, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """An environment with an agent, and the size of a repeat."""

    env: EnvConfig
    agent: PolicyGradientConfig = dataclasses.field(default_factory=PolicyGradientConfig)
    num_envs: int = 16  # per thread
    length: int = 100  # T
    num_cycles: int = 20
    has_eager: bool = True  # also measure `benchmarks.eager_cycle`


def _pong(env: EnvConfig) -> Workload:
    return Workload(
        env=env,
        agent=PolicyGradientConfig(torso="dqn"),
        num_envs=64,
        length=20,
        num_cycles=2,
        has_eager=False,
    )


WORKLOADS = {
    # One EnvPool thread is faster than two here: waking the second takes longer than stepping.
    "envpool": Workload(
        env=EnvConfig(suite="envpool", id="CartPole-v1", options={"num_threads": 1})
    ),
    "zero": Workload(env=EnvConfig(suite="benchmarks.environments:make", id="Canned")),
    "gymnasium-sync": Workload(env=EnvConfig(suite="gymnasium", id="CartPole-v1"), num_cycles=5),
    "gymnasium-async": Workload(
        env=EnvConfig(suite="gymnasium", id="CartPole-v1", options={"vectorization_mode": "async"}),
        num_cycles=5,
    ),
    "pong-envpool": _pong(EnvConfig(suite="envpool", id="Pong-v5")),
    "pong-ale": _pong(EnvConfig(suite="ale", id="pong")),
}
_BARE_LOOP = "bare loop of environment and inference"
_HALVES = "fused, 2 threads with half of the environments each"
CHECKED_CYCLES = 3
CHECKED_ENVS = 4


class Bench:
    """The act cycles of a workload, which share an agent and networks."""

    def __init__(self, workload: Workload):
        self.workload = workload
        self.length = workload.length
        self.device = jax.local_devices()[0]
        environment = make_environment(workload.env, num_envs=1, seed=0)
        self.fusible = environment.reset() is not None and environment.fused() is not None
        run_spec = alone.acting_spec(
            environment.spec, num_envs=workload.num_envs, trajectory_length=workload.length
        )
        environment.close()
        self.agent = PolicyGradient(workload.agent, run_spec)
        self.networks: Networks = jax.device_put(
            self.agent.init_networks(jax.random.key(0)), self.device
        )
        self.functions = StepFunctions(
            self.agent, trajectory_length=workload.length, device=self.device
        )
        self.cycles = ("stepped", "fused") if self.fusible else ("stepped",)
        self.variants = ("eager", *self.cycles) if workload.has_eager else self.cycles

    def make_environment(self, seed: int) -> Environment:
        """Make a batch of environments."""
        return make_environment(self.workload.env, num_envs=self.workload.num_envs, seed=seed)

    def make_cycle(
        self, variant: str, environment: Environment, env_step: EnvStep
    ) -> tuple[ActCycle, ActCarry]:
        """Return an act cycle of a reset environment, and its first carry."""
        agent, length = self.agent, self.length
        carry = alone.first_carry(agent, self.networks, env_step, device=self.device)
        if variant == "eager":
            return EagerCycle(agent, environment, trajectory_length=length), carry
        if variant == "fused":
            cycle = alone.fused_cycle(
                agent, environment, trajectory_length=length, device=self.device
            )
            return cycle, carry
        return SteppedCycle(self.functions, environment, clock=WallClock()), carry


class Acting:
    """Work: act cycles of one variant, one thread and environment each."""

    def __init__(self, bench: Bench, variant: str, environments: Sequence[Environment]):
        self._bench = bench
        self._pool = concurrent.futures.ThreadPoolExecutor(len(environments))
        self._cycles = [
            bench.make_cycle(variant, environment, environment.reset())
            for environment in environments
        ]

    def __call__(self, num_cycles: int) -> int:
        """Run `num_cycles` act cycles in each thread, and return the env steps."""
        run = functools.partial(self._act, num_cycles=num_cycles)
        self._cycles = list(self._pool.map(run, self._cycles))
        workload = self._bench.workload
        return len(self._cycles) * num_cycles * workload.length * workload.num_envs

    def _act(self, pair: tuple[ActCycle, ActCarry], num_cycles: int) -> tuple[ActCycle, ActCarry]:
        cycle, carry = pair
        for _ in range(num_cycles):
            carry = cycle(self._bench.networks, carry).carry
        return cycle, carry


def check_identical(bench: Bench) -> None:
    """Check that all variants give the same trajectories.

    Raises:
        AssertionError: two variants differ.
    """
    expected: list[PyTree] | None = None
    for variant in bench.variants:
        environment = bench.make_environment(0)
        cycle, carry = bench.make_cycle(variant, environment, environment.reset())
        results = []
        for _ in range(CHECKED_CYCLES):
            collected = cycle(bench.networks, carry)
            carry, tally = collected.carry, collected.tally
            results.append((collected.trajectory, tally.ended, tally.env_steps))
        environment.close()
        if expected is None:
            expected = results
        jax.tree.map(np.testing.assert_array_equal, results, expected)


def measure(bench: Bench, *, threads: Sequence[int], repeats: int) -> Result:
    """Measure env steps per second of every variant, and of act cycles with several threads."""
    workload = bench.workload
    threads = sorted({1, *threads})
    environments = [bench.make_environment(seed) for seed in range(max(threads))]
    # Once fused, an environment can no longer be stepped from Python.
    own = [bench.make_environment(seed) for seed in range(sum(threads))] if bench.fusible else []
    remaining = iter(own)
    work: dict[str, Callable[[], float]] = {}
    for number in threads:
        for variant in bench.variants if number == 1 else bench.cycles:
            mine = [next(remaining) for _ in range(number)] if variant == "fused" else environments
            acting = Acting(bench, variant, mine[:number])
            work[_name(variant, number)] = functools.partial(acting, workload.num_cycles)
    rows = workload.num_cycles * workload.length
    agent, networks, row = bench.agent, bench.networks, environments[0].reset()
    work["stepped environment alone"] = alone.step_alone(environments[0], rows)
    work["stepped inference alone"] = alone.infer_alone(agent, networks, row, rows)
    if bench.fusible:
        half = Bench(dataclasses.replace(workload, num_envs=workload.num_envs // 2))
        halves = [half.make_environment(seed) for seed in range(2)]
        own += halves
        work[_HALVES] = functools.partial(Acting(half, "fused", halves), workload.num_cycles)
        own += [bench.make_environment(seed) for seed in range(2)]
        own[-2].reset()
        scans = {"num_rows": workload.length, "num_scans": workload.num_cycles}
        work["fused environment alone"] = alone.scan_alone(own[-2], **scans)
        work["fused inference alone"] = alone.infer_in_scan(agent, networks, row, **scans)
        work[_BARE_LOOP] = alone.loop_alone(
            agent, networks, own[-1], own[-1].reset(), workload.length, workload.num_cycles
        )
    rates = harness.interleave(work, repeats)
    for environment in (*environments, *own):
        environment.close()
    for kind in bench.cycles:
        rates[f"{kind} serial limit"] = harness.serial_limit(
            rates[f"{kind} environment alone"], rates[f"{kind} inference alone"]
        )
    return Result(
        name=f"act cycle, {workload.env.suite} {workload.env.id} {workload.env.options or ''}",
        unit="env steps/s",
        rates=rates,
        ratios=_ratios(rates, bench, threads),
        microseconds={
            "a vector step of stepped beyond its serial limit": harness.combine(
                lambda a, b: 1e6 * workload.num_envs * (1 / a - 1 / b),
                rates[_name("stepped", 1)],
                rates["stepped serial limit"],
            )
        },
        settings={
            "torso": workload.agent.torso,
            "environments": workload.num_envs,
            "steps a cycle": workload.length,
            "cycles": workload.num_cycles,
        },
    )


def _name(variant: str, threads: int) -> str:
    return f"{variant}, {threads} thread{'s' if threads > 1 else ''}"


def _ratios(rates: Mapping[str, Series], bench: Bench, threads: Sequence[int]) -> dict[str, Series]:
    ratios = {}
    one = {variant: rates[_name(variant, 1)] for variant in bench.variants}
    if "eager" in one:
        for variant in bench.cycles:
            ratios[f"{variant} / eager"] = one[variant].over(one["eager"])
    if bench.fusible:
        ratios["fused / stepped"] = one["fused"].over(one["stepped"])
        ratios["fused / bare loop"] = one["fused"].over(rates[_BARE_LOOP])
        ratios[f"{_HALVES} / serial limit"] = rates[_HALVES].over(rates["fused serial limit"])
    for variant in bench.cycles:
        for number in threads:
            name, rate = _name(variant, number), rates[_name(variant, number)]
            ratios[f"{name} / serial limit"] = rate.over(rates[f"{variant} serial limit"])
            if number > 1:
                ratios[f"{name} / 1"] = rate.over(one[variant])
    return ratios


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    arguments = parser.parse_args()
    results = []
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        # Few environments: ALE takes 0.2 s to make and reset each.
        check_identical(Bench(dataclasses.replace(workload, num_envs=CHECKED_ENVS)))
        bench = Bench(workload)
        results.append(measure(bench, threads=arguments.threads, repeats=arguments.repeats))
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
