"""Times act cycles: env steps a second of acting alone, by the way it is done.

    python -m benchmarks.act_cycle [--workloads envpool pong-ale …] [--threads 1 2] [--json FILE]

CartPole with an MLP of five tanh layers of 200, 16 environments a thread and 100 steps a cycle;
Pong with the network of DQN, 64 environments a thread and 20 steps a cycle. All variants give the
same trajectories, which is checked first. Beside them stand the environment alone, the inference
alone (stepped: a bare jitted act for each vector step; fused: a jitted scan), their serial limit
1 / (1/environment + 1/inference), and for fused cycles a jitted loop of both that keeps no rows.
The loops of `benchmarks.bookkeeping` run in one thread.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from benchmarks import alone, harness
from benchmarks.bookkeeping import BOOKKEEPING, LoopCycle
from benchmarks.harness import Result, Series
from benchmarks.policy_gradient import PolicyGradient, PolicyGradientConfig
from sebulba.acting.act_cycle import ActCarry, ActCycle, BufferAllocator, init_carry
from sebulba.acting.episode_reducers import EpisodeTracker
from sebulba.acting.fused_cycle import FusedCycle
from sebulba.acting.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.ring.timing import WallClock
from sebulba.types import EnvStep, Networks, PyTree, RunSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What is acted, and how much of it in a repeat."""

    env: EnvConfig
    agent: PolicyGradientConfig = dataclasses.field(default_factory=PolicyGradientConfig)
    num_envs: int = 16  # of a thread
    length: int = 100  # T
    num_cycles: int = 20
    has_loops: bool = True  # whether the loops of `benchmarks.bookkeeping` run too


def _pong(env: EnvConfig) -> Workload:
    return Workload(
        env=env,
        agent=PolicyGradientConfig(torso="dqn"),
        num_envs=64,
        length=20,
        num_cycles=2,
        has_loops=False,
    )


WORKLOADS = {
    # One thread steps these environments faster than two: waking the second takes longer.
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
CHECKED_CYCLES = 3
CHECKED_ENVS = 4


class Bench:
    """One workload's act cycles, with the agent and networks that all of them share."""

    def __init__(self, workload: Workload):
        self.workload = workload
        self.length = workload.length
        self.device = jax.local_devices()[0]
        environment = make_environment(workload.env, num_envs=1, seed=0)
        self.fusible = environment.reset() is not None and environment.fused() is not None
        run_spec = RunSpec(
            environment=environment.spec,
            num_envs=workload.num_envs,
            num_actors=1,
            num_learner_devices=1,
            trajectory_length=workload.length,
            trajectories_per_cycle=1,
            num_cycles=1,
        )
        environment.close()
        self.agent = PolicyGradient(workload.agent, run_spec)
        self.networks: Networks = jax.device_put(
            self.agent.init_networks(jax.random.key(0)), self.device
        )
        self.functions = StepFunctions(self.agent, device=self.device)
        self.loops = BOOKKEEPING if workload.has_loops else ()
        self.cycles = ("stepped", "fused") if self.fusible else ("stepped",)

    def make_environment(self, seed: int) -> Environment:
        """Makes a new batch of environments."""
        return make_environment(self.workload.env, num_envs=self.workload.num_envs, seed=seed)

    def make_cycle(
        self, variant: str, environment: Environment, env_step: EnvStep
    ) -> tuple[ActCycle, ActCarry]:
        """Returns an act cycle of an environment that has been reset, and its first carry."""
        agent, networks = self.agent, self.networks
        key = jax.random.key(1)
        carry = init_carry(
            agent,
            networks,
            env_step,
            key=key,
            global_actor_id=0,
            device=self.device,
            tracker=EpisodeTracker(),
        )
        if variant in BOOKKEEPING:
            return LoopCycle(
                agent, environment, bookkeeping=variant, trajectory_length=self.length
            ), carry
        shared = {
            "allocate": BufferAllocator(
                agent, networks, carry, trajectory_length=self.length, device=self.device
            ),
            "trajectory_length": self.length,
            "clock": WallClock(),
        }
        if variant == "fused":
            return FusedCycle(agent, environment.fused(), device=self.device, **shared), carry
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
        workload = self._bench.workload
        return len(self._cycles) * num_cycles * workload.length * workload.num_envs

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
    for variant in (*bench.loops, *bench.cycles):
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


def measure(bench: Bench, *, threads: Sequence[int], repeats: int) -> Result:
    """Returns env steps a second of every variant, of the act cycles with 1 and more threads."""
    workload = bench.workload
    threads = sorted({1, *threads})
    environments = [bench.make_environment(seed) for seed in range(max(threads))]
    # A fused environment's stream goes on through its traceable step alone.
    own = [bench.make_environment(seed) for seed in range(sum(threads))] if bench.fusible else []
    remaining = iter(own)
    work: dict[str, Callable[[], float]] = {}
    for number in threads:
        for variant in (*(bench.loops if number == 1 else ()), *bench.cycles):
            mine = [next(remaining) for _ in range(number)] if variant == "fused" else environments
            acting = Acting(bench, variant, mine[:number])
            work[_name(variant, number)] = functools.partial(acting, workload.num_cycles)
    rows = workload.num_cycles * workload.length
    agent, networks, row = bench.agent, bench.networks, environments[0].reset()
    work["stepped environment alone"] = alone.step_alone(environments[0], rows)
    work["stepped inference alone"] = alone.infer_alone(agent, networks, row, rows)
    if bench.fusible:
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
    one = {variant: rates[_name(variant, 1)] for variant in (*bench.loops, *bench.cycles)}
    if bench.loops:
        for variant in ("jit", "donated", *bench.cycles):
            ratios[f"{variant} / eager bookkeeping"] = one[variant].over(one["eager"])
    if bench.fusible:
        ratios["fused / stepped"] = one["fused"].over(one["stepped"])
        ratios["fused / bare loop"] = one["fused"].over(rates[_BARE_LOOP])
    for variant in bench.cycles:
        for number in threads:
            name, rate = _name(variant, number), rates[_name(variant, number)]
            ratios[f"{name} / serial limit"] = rate.over(rates[f"{variant} serial limit"])
            if number > 1:
                ratios[f"{name} / 1"] = rate.over(one[variant])
    return ratios


def main() -> None:
    """Runs the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    arguments = parser.parse_args()
    results = []
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        # ALE takes a fifth of a second to make and reset one environment.
        check_identical(Bench(dataclasses.replace(workload, num_envs=CHECKED_ENVS)))
        bench = Bench(workload)
        results.append(measure(bench, threads=arguments.threads, repeats=arguments.repeats))
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
