"""Measure how well acting and learning overlap: threads compared with `run.mode: serial`.

    python -m benchmarks.overlap [--json FILE]

The environment only waits, as long as learning takes. Without overlap, a cycle takes twice the time
of one with full overlap, so the best ratio is 2.
"""

import dataclasses
import functools
import time

from benchmarks import harness, rings
from benchmarks.harness import Result
from benchmarks.policy_gradient import PolicyGradientConfig
from sebulba.config import Config
from sebulba.ring.make import made_ring


def measure(*, num_envs: int, updates_per_cycle: int, cycles: int, repeats: int) -> Result:
    """Measure env steps per second with threads and in serial mode."""
    agent = PolicyGradientConfig(updates_per_cycle=updates_per_cycle)
    base = rings.canned_config(agent, num_envs=num_envs)
    rows_per_cycle = num_envs * base.actor.trajectory_length
    base = rings.of_length(base, cycles * rows_per_cycle)
    act_s, learn_s = _alone_s(base)
    latency_s = max(0.0, learn_s - act_s) / base.actor.trajectory_length
    base = dataclasses.replace(
        base, env=dataclasses.replace(base.env, options={"latency_s": latency_s})
    )
    configs = {
        mode: dataclasses.replace(base, run=dataclasses.replace(base.run, mode=mode))
        for mode in ("serial", "threads")
    }
    rates = harness.interleave(
        {mode: functools.partial(rings.run_ring, config) for mode, config in configs.items()},
        repeats,
    )
    return Result(
        name="overlap",
        unit="env steps/s",
        rates=rates,
        ratios={"threads / serial": rates["threads"].over(rates["serial"])},
        settings={
            "environments": num_envs,
            "cycles": cycles,
            "learner ms a cycle": round(1e3 * learn_s, 1),
            "inference ms a cycle": round(1e3 * act_s, 1),
            "latency ms a step": round(1e3 * latency_s, 2),
        },
    )


def _alone_s(config: Config, tries: int = 5) -> tuple[float, float]:
    """Measure the seconds of an act cycle without latency, and of a learner cycle."""
    fastest = [float("inf"), float("inf")]
    with made_ring(config) as ring:
        for _ in range(tries):
            begin = time.perf_counter()
            items = rings.act_one_cycle(ring)
            acted = time.perf_counter()
            rings.update(ring, items)
            seconds = (acted - begin, time.perf_counter() - acted)
            fastest = [min(pair) for pair in zip(fastest, seconds, strict=True)]
    return fastest[0], fastest[1]


def main() -> None:
    """Run the benchmark."""
    arguments = harness.parser(__doc__).parse_args()
    harness.compile_once()
    result = measure(num_envs=16, updates_per_cycle=20, cycles=25, repeats=arguments.repeats)
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
