"""Measure the training, or the acting, of another system and of ours, in turns.

    python -m benchmarks.peers [PAIR --python PEER_PYTHON [--checkout DIR]] [--repeats 5] [--start]

Without a pair, it prints the pairs: how to install the peer, which settings are equal, and which
cannot be. The peer runs unchanged with the Python of its own environment, ours with this one. Both
print their env steps wherever a batch has been learned from, or only acted, and this process reads
the clock, so nobody's own figure is used. Nothing else should run at the same time. A peer with our
jaxlib also runs with the flags of XLA that `import sebulba` sets on a CPU, as a row of its own.

With `--start`, it measures the seconds from the start of the process to the first batch that has
been learned from: with an empty compilation cache, and with the one that this start filled. Before,
an untimed start of each writes the bytecode of all modules that it imports.
"""

import argparse
import functools
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping

from benchmarks import harness
from benchmarks.counting import bytecode_variables, cache_variables, started
from benchmarks.harness import Result, Series, Timed
from benchmarks.peers.pairs import PAIRS, PEER_VARIABLES, Pair

_PROGRAMS = pathlib.Path(__file__).parent


def measure(pair: Pair, *, python: str, checkout: str, seconds: float, repeats: int) -> Result:
    """Measure env steps per second of both, in turns."""
    peer = [python, str(_PROGRAMS / pair.program), *pair.arguments(checkout)]
    own = [*_own_command(pair), *pair.own_flags]
    run = functools.partial(_run, warm_up_s=pair.warm_up_s, seconds=seconds)
    work = {"ours": lambda: run(own), pair.name: lambda: run(peer, PEER_VARIABLES)}
    flagged = f"{pair.name} with our XLA flags"
    if pair.xla_flags:
        work[flagged] = lambda: run(peer, PEER_VARIABLES | {"XLA_FLAGS": pair.xla_flags})
    rates = harness.interleave(work, repeats)
    ratios = {"ours / peer": rates["ours"].over(rates[pair.name])}
    if pair.xla_flags:
        ratios["ours / peer with our XLA flags"] = rates["ours"].over(rates[flagged])
    return Result(
        name=f"ours and {pair.name}",
        unit="env steps/s",
        rates=rates,
        ratios=ratios,
        settings={"seconds": seconds, "equal": pair.equal, "not equal": pair.different},
    )


def measure_start(pair: Pair, *, python: str, checkout: str, repeats: int) -> Result:
    """Measure the seconds of first and second starts of both, in turns."""
    arguments = pair.arguments(checkout, is_start=True)
    peer = [python, str(_PROGRAMS / pair.program), *arguments]
    own = [*_own_command(pair), "--run.log-interval-env-steps", "1", *pair.own_flags]
    commands = {"ours": (own, {}), pair.name: (peer, PEER_VARIABLES)}
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        written = bytecode_variables(bytecode)
        for command, variables in commands.values():
            with tempfile.TemporaryDirectory() as cache:
                _start(command, variables | cache_variables(cache) | written)
        for _ in range(repeats):
            for name, (command, variables) in commands.items():
                with tempfile.TemporaryDirectory() as cache:
                    for start in ("first start", "second start"):
                        taken = _start(command, variables | cache_variables(cache) | written)
                        seconds.setdefault(f"{name}, {start}", []).append(taken)
    rates = {name: Series(values=tuple(values)) for name, values in seconds.items()}
    return Result(
        name=f"start to first update, ours and {pair.name}",
        unit="s",
        rates=rates,
        ratios={
            f"ours / peer, {start}": rates[f"ours, {start}"].over(rates[f"{pair.name}, {start}"])
            for start in ("first start", "second start")
        },
        settings={"equal": pair.equal, "not equal": pair.different},
    )


def _own_command(pair: Pair) -> list[str]:
    config = str(_PROGRAMS / pair.config)
    return [sys.executable, "-m", f"benchmarks.peers.{pair.own}", config]


def _run(
    command: list[str],
    variables: Mapping[str, str] | None = None,
    *,
    warm_up_s: float,
    seconds: float,
) -> Timed:
    """Run a program until it has been measured; start-up and warm-up are not part of it."""
    with started(command, variables) as program:
        return program.measure(warm_up_s, seconds)


def _start(command: list[str], variables: Mapping[str, str]) -> float:
    """Start a program, and return the seconds until it has learned from its first batch."""
    begin = time.perf_counter()
    with started(command, variables) as program:
        return program.wait_for_count() - begin


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("pair", nargs="?", choices=PAIRS, help="what to compare")
    parser.add_argument("--python", help="interpreter of the peer's environment")
    parser.add_argument("--checkout", default="", help="checkout of the peer's repository")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--start", action="store_true", help="measure the start instead")
    arguments: argparse.Namespace = parser.parse_args()
    if arguments.pair is None:
        print("\n\n".join(pair.describe() for pair in PAIRS.values()))
        return
    pair = PAIRS[arguments.pair]
    if arguments.python is None or (pair.needs_checkout and not arguments.checkout):
        parser.error(f"expected --python and --checkout\n\n{pair.describe()}")
    take = (
        measure_start if arguments.start else functools.partial(measure, seconds=arguments.seconds)
    )
    result = take(
        pair, python=arguments.python, checkout=arguments.checkout, repeats=arguments.repeats
    )
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
