"""Measure how a run grows with its environments: speed, memory, compilation, first row.

    python -m benchmarks.growth [CONFIG] [--environments 16 1024 4096 16384] [--json FILE]

Any other flag is the config's. Each repeat trains with every number of environments in a process of
its own, with an empty compilation cache. Speed is measured after the first row of metrics. Memory
is the peak of the process (Linux only). Nothing else should run at the same time.
"""

import pathlib
import re
import sys
import tempfile
import time

from benchmarks import harness
from benchmarks.counting import cache_variables, started
from benchmarks.harness import Result, Series

CONFIG = pathlib.Path(__file__).parent / "peers" / "gymnax_cartpole.yaml"
_COMPILED = re.compile(r"Finished XLA compilation of .* in ([0-9.e+-]+) sec")
_WARM_UP_S = 1.0


def measure(
    config: str, flags: list[str], *, environments: list[int], seconds: float, repeats: int
) -> list[Result]:
    """Measure all numbers of environments, in turns."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for _ in range(repeats):
        for num_envs in environments:
            measured = train(config, [*flags, "--actor.num-envs", str(num_envs)], seconds)
            for what, value in measured.items():
                row = values.setdefault(what, {})
                row.setdefault(f"{num_envs:,} environments", []).append(value)
    settings = {"config": pathlib.Path(config).name, "flags": " ".join(flags) or "none"}
    results = []
    for (name, unit), row in values.items():
        rates = {each: Series(values=tuple(column)) for each, column in row.items()}
        ratios = {}
        if name == "speed":
            best = max(rates.values(), key=lambda series: series.median)
            ratios = {f"{each} / the best": series.over(best) for each, series in rates.items()}
        results.append(Result(name=name, unit=unit, rates=rates, ratios=ratios, settings=settings))
    return results


def train(config: str, flags: list[str], seconds: float) -> dict[tuple[str, str], float]:
    """Train for some seconds, and return the measurements by their names and units."""
    command = [sys.executable, "-m", "benchmarks.peers.ours", config, *flags]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        variables = cache_variables(cache) | {"JAX_LOG_COMPILES": "1"}
        with started(command, variables) as program:
            first_row = program.wait_for_count() - begin
            speed = program.measure(_WARM_UP_S, seconds)
            status = pathlib.Path(f"/proc/{program.process.pid}/status").read_text()
            peak_kib = int(status.split("VmHWM:")[1].split()[0])
            compilations = _COMPILED.findall(program.error_output())
    return {
        ("speed", "env steps/s"): speed.amount / speed.seconds,
        ("peak memory", "MiB"): peak_kib / 1024,
        ("compilation", "s"): sum(map(float, compilations)),
        ("start to first row", "s"): first_row,
    }


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--environments", nargs="+", type=int, default=[16, 1024, 4096, 16384], help="numbers"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    arguments, config, flags = harness.parse_with_config(parser, CONFIG)
    results = measure(
        config,
        flags,
        environments=arguments.environments,
        seconds=arguments.seconds,
        repeats=arguments.repeats,
    )
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
