"""Times how env steps a second grow with actor threads whose environments only wait.

    python -m benchmarks.scaling [--threads 1 4 16] [--json FILE]

Each env step waits 5 ms and the network is tiny, so the cores have next to nothing to do: what
keeps the growth below the number of threads is the framework.
"""

from collections.abc import Sequence

from benchmarks import harness, rings
from benchmarks.harness import Result
from benchmarks.policy_gradient import PolicyGradientConfig
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig

LATENCY_S = 5e-3


def measure(*, threads: Sequence[int], cycles: int, repeats: int) -> Result:
    """Returns env steps a second for each number of actor threads."""
    configs = {number: _config(number, cycles) for number in threads}
    rates = harness.interleave(
        {
            f"{number} threads": lambda config=config: rings.run_ring(config)
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
    actor = ActorConfig(threads_per_device=threads, num_envs=16, trajectory_length=20)
    config = Config(
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        env=EnvConfig(
            suite="benchmarks.environments:make", id="Canned", options={"latency_s": LATENCY_S}
        ),
        actor=actor,
        agent=PolicyGradientConfig(hidden_sizes=(16,)),
    )
    return rings.of_length(config, threads * cycles * actor.num_envs * actor.trajectory_length)


def main() -> None:
    """Runs the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--cycles", type=int, default=20, help="of each actor (default 20)")
    arguments = parser.parse_args()
    harness.compile_once()
    result = measure(threads=arguments.threads, cycles=arguments.cycles, repeats=arguments.repeats)
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
