"""Times act cycles: env steps a second of acting alone, by the way it is done.

    python -m benchmarks.act_cycle [--environments envpool zero …] [--threads 1 2] [--json FILE]

CartPole, an MLP of five tanh layers of 200, 16 environments a thread, 100 steps a cycle, 20 cycles
a repeat. All variants give the same trajectories, which is checked first. Beside them stand the
environment alone, the inference alone (stepped: a bare jitted act for each vector step; fused: a
jitted scan), and the serial limit 1 / (1/environment + 1/inference).
"""

import concurrent.futures
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from benchmarks import alone, harness
from benchmarks.bookkeeping import BOOKKEEPING, LoopCycle
from benchmarks.harness import Result
from benchmarks.policy_gradient import PolicyGradient, PolicyGradientConfig
from sebulba.act_cycle import (
    ActCarry,
    ActCycle,
    BufferAllocator,
    FusedCycle,
    StepFunctions,
    SteppedCycle,
    init_carry,
)
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.timing import WallClock
from sebulba.types import EnvStep, Networks, PyTree, RunSpec

NUM_ENVS = 16
ENVIRONMENTS = {
    "envpool": EnvConfig(suite="envpool", id="CartPole-v1"),
    "gymnasium-sync": EnvConfig(suite="gymnasium", id="CartPole-v1"),
    "gymnasium-async": EnvConfig(
        suite="gymnasium", id="CartPole-v1", options={"vectorization_mode": "async"}
    ),
    "zero": EnvConfig(suite="benchmarks.environments:make", id="Canned"),
}
CHECKED_CYCLES = 3


class Bench:
    """One environment's act cycles, with the agent and networks that all of them share."""

    def __init__(self, config: EnvConfig, *, length: int, hidden_sizes: tuple[int, ...]):
        self.config = config
        self.length = length
        self.device = jax.local_devices()[0]
        environment = self.make_environment(0)
        self.fusible = environment.reset() is not None and environment.fused() is not None
        run_spec = RunSpec(
            environment=environment.spec,
            num_envs=NUM_ENVS,
            num_actors=1,
            num_learner_devices=1,
            trajectory_length=length,
            trajectories_per_cycle=1,
            num_cycles=1,
        )
        environment.close()
        self.agent = PolicyGradient(PolicyGradientConfig(hidden_sizes=hidden_sizes), run_spec)
        self.networks: Networks = jax.device_put(
            self.agent.init_networks(jax.random.key(0)), self.device
        )
        self.functions = StepFunctions(self.agent)
        self.variants = (*BOOKKEEPING, "stepped", *(["fused"] if self.fusible else []))

    def make_environment(self, seed: int) -> Environment:
        """Makes a new batch of environments."""
        return make_environment(self.config, num_envs=NUM_ENVS, seed=seed)

    def make_cycle(
        self, variant: str, environment: Environment, env_step: EnvStep
    ) -> tuple[ActCycle, ActCarry]:
        """Returns an act cycle of an environment that has been reset, and its first carry."""
        agent, networks = self.agent, self.networks
        key = jax.random.key(1)
        carry = init_carry(agent, networks, env_step, key=key, actor_id=0, device=self.device)
        if variant in BOOKKEEPING:
            return LoopCycle(
                agent, environment, bookkeeping=variant, trajectory_length=self.length
            ), carry
        shared = {
            "allocate": BufferAllocator(
                agent, networks, carry, trajectory_length=self.length, device=self.device
            ),
            "trajectory_length": self.length,
            "device": self.device,
            "clock": WallClock(),
        }
        if variant == "fused":
            return FusedCycle(agent, environment.fused(), **shared), carry
        return SteppedCycle(self.functions, environment, **shared), carry


class Acting:
    """Work: act cycles of one variant, each on an environment of its own, in as many threads."""

    def __init__(self, bench: Bench, variant: str, environments: Sequence[Environment]):
        self._bench = bench
        self._pool = concurrent.futures.ThreadPoolExecutor(len(environments))
        self._cycles = [
            bench.make_cycle(variant, environment, environment.reset())
            for environment in environments
        ]

    def __call__(self, num_cycles: int) -> int:
        """Acts `num_cycles` cycles in each thread; returns the rows acted."""
        run = functools.partial(self._act, num_cycles=num_cycles)
        self._cycles = list(self._pool.map(run, self._cycles))
        return len(self._cycles) * num_cycles * self._bench.length * NUM_ENVS

    def _act(self, pair: tuple[ActCycle, ActCarry], num_cycles: int) -> tuple[ActCycle, ActCarry]:
        cycle, carry = pair
        for _ in range(num_cycles):
            carry, _ = cycle(self._bench.networks, carry)
        return cycle, carry


def check_identical(bench: Bench) -> None:
    """Checks that all variants give the same trajectories.

    Raises:
        AssertionError: they do not.
    """
    expected: list[PyTree] | None = None
    for variant in bench.variants:
        environment = bench.make_environment(0)
        cycle, carry = bench.make_cycle(variant, environment, environment.reset())
        results = []
        for _ in range(CHECKED_CYCLES):
            carry, result = cycle(bench.networks, carry)
            results.append((result.trajectory, result.episodes, result.env_steps))
        environment.close()
        if expected is None:
            expected = results
        jax.tree.map(np.testing.assert_array_equal, results, expected)


def measure(bench: Bench, *, threads: Sequence[int], num_cycles: int, repeats: int) -> Result:
    """Returns env steps a second of every variant with every number of threads."""
    environments = [bench.make_environment(seed) for seed in range(max(threads))]
    # A fused environment's stream goes on through its traceable step alone.
    own = [bench.make_environment(seed) for seed in range(sum(threads))] if bench.fusible else []
    remaining = iter(own)
    work: dict[str, Callable[[], float]] = {}
    for number in threads:
        for variant in bench.variants:
            mine = [next(remaining) for _ in range(number)] if variant == "fused" else environments
            acting = Acting(bench, variant, mine[:number])
            work[f"{variant}, {number} threads"] = functools.partial(acting, num_cycles)
    rows = num_cycles * bench.length
    agent, networks, row = bench.agent, bench.networks, environments[0].reset()
    work["stepped environment alone"] = alone.step_alone(environments[0], rows)
    work["stepped inference alone"] = alone.infer_alone(agent, networks, row, rows)
    if bench.fusible:
        own.append(bench.make_environment(0))
        own[-1].reset()
        scans = {"num_rows": bench.length, "num_scans": num_cycles}
        work["fused environment alone"] = alone.scan_alone(own[-1], **scans)
        work["fused inference alone"] = alone.infer_in_scan(agent, networks, row, **scans)
    rates = harness.interleave(work, repeats)
    for environment in (*environments, *own):
        environment.close()
    for kind in ("stepped", "fused") if bench.fusible else ("stepped",):
        rates[f"{kind} serial limit"] = harness.serial_limit(
            rates[f"{kind} environment alone"], rates[f"{kind} inference alone"]
        )
    return Result(
        name=f"act cycle, {bench.config.suite} {bench.config.id} {bench.config.options or ''}",
        unit="env steps/s",
        rates=rates,
        ratios=_ratios(rates, bench, threads),
        settings={"environments": NUM_ENVS, "steps a cycle": bench.length, "cycles": num_cycles},
    )


def _ratios(rates, bench: Bench, threads: Sequence[int]) -> dict[str, harness.Series]:
    one = min(threads)

    def rate(variant: str, number: int = one) -> harness.Series:
        return rates[f"{variant}, {number} threads"]

    ratios = {
        "jit / eager bookkeeping": rate("jit").over(rate("eager")),
        "donated / eager bookkeeping (1.37 in the notes)": rate("donated").over(rate("eager")),
        "stepped / eager bookkeeping": rate("stepped").over(rate("eager")),
        "stepped / its serial limit": rate("stepped").over(rates["stepped serial limit"]),
        "µs a vector step of stepped beyond its serial limit": harness.combine(
            lambda a, b: 1e6 * NUM_ENVS * (1 / a - 1 / b),
            rate("stepped"),
            rates["stepped serial limit"],
        ),
    }
    if bench.fusible:
        ratios |= {
            "fused / eager bookkeeping": rate("fused").over(rate("eager")),
            "fused / stepped": rate("fused").over(rate("stepped")),
            "fused / its serial limit": rate("fused").over(rates["fused serial limit"]),
        }
    for number in threads:
        if number != one:
            for variant in bench.variants:
                name = f"{variant}, {number} threads / {one}"
                ratios[name] = rate(variant, number).over(rate(variant))
    return ratios


def main() -> None:
    """Runs the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=ENVIRONMENTS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--cycles", type=int, default=20, help="cycles a repeat (default 20)")
    arguments = parser.parse_args()
    results = []
    for name in arguments.environments:
        bench = Bench(ENVIRONMENTS[name], length=100, hidden_sizes=(200,) * 5)
        check_identical(bench)
        results.append(
            measure(
                bench,
                threads=arguments.threads,
                num_cycles=arguments.cycles,
                repeats=arguments.repeats,
            )
        )
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
