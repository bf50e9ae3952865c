"""Measure how env steps per second grow with actor threads, on environments that only wait.

    python -m benchmarks.scaling [--threads 1 4 16] [--json FILE]

Each env step waits 5 ms and the network is tiny, so the cores are nearly idle. If speed grows less
than the number of threads, the framework is the reason.
"""

import functools
from collections.abc import Sequence

from benchmarks import harness, rings
from benchmarks.harness import Result
from benchmarks.policy_gradient import PolicyGradientConfig
from sebulba.config import Config

LATENCY_S = 5e-3


def measure(*, threads: Sequence[int], cycles: int, repeats: int) -> Result:
    """Measure env steps per second for each number of actor threads."""
    configs = {number: _config(number, cycles) for number in threads}
    rates = harness.interleave(
        {
            f"{number} threads": functools.partial(rings.run_ring, config)
            for number, config in configs.items()
        },
        repeats,
    )
    one = min(threads)
    return Result(
        name="scaling",
        unit="env steps/s",
        rates=rates,
        ratios={
            f"{number} threads / {one}": rates[f"{number} threads"].over(rates[f"{one} threads"])
            for number in threads
            if number != one
        },
        settings={"latency ms": 1e3 * LATENCY_S, "cycles of each actor": cycles},
    )


def _config(threads: int, cycles: int) -> Config:
    agent = PolicyGradientConfig(hidden_sizes=(16,))
    config = rings.canned_config(agent, num_envs=16, threads=threads, latency_s=LATENCY_S)
    rows = config.actor.num_envs * config.actor.trajectory_length
    return rings.of_length(config, threads * cycles * rows)


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument(
        "--cycles", type=int, default=20, help="act cycles of each actor per repeat (default 20)"
    )
    arguments = parser.parse_args()
    harness.compile_once()
    result = measure(threads=arguments.threads, cycles=arguments.cycles, repeats=arguments.repeats)
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
