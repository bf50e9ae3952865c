"""Measure the training, or the acting, of another system and of ours, in turns.

    python -m benchmarks.peers [PAIR --python PEER_PYTHON [--checkout DIR]] [--repeats 5]

Without a pair, it prints the pairs: how to install the peer, which settings are equal, and which
cannot be. The peer runs unchanged with the Python of its own environment, ours with this one. Both
print their env steps wherever a batch has been learned from, or only acted, and this process reads
the clock, so nobody's own figure is used. Nothing else should run at the same time.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks import harness
from benchmarks.harness import Result, Timed
from benchmarks.peers.pairs import PAIRS, Pair

_PROGRAMS = pathlib.Path(__file__).parent
PREFIX = "env steps: "
"""What each program prints before the number of env steps so far."""


def measure(pair: Pair, *, python: str, checkout: str, seconds: float, repeats: int) -> Result:
    """Measure env steps per second of both, in turns."""
    peer = [python, str(_PROGRAMS / pair.program), *pair.arguments(checkout)]
    config = str(_PROGRAMS / pair.config)
    own = [sys.executable, "-m", f"benchmarks.peers.{pair.own}", config, *pair.own_flags]
    rates = harness.interleave(
        {
            "ours": lambda: _run(own, pair.warm_up_s, seconds),
            pair.name: lambda: _run(peer, pair.warm_up_s, seconds),
        },
        repeats,
    )
    return Result(
        name=f"ours and {pair.name}",
        unit="env steps/s",
        rates=rates,
        ratios={"ours / peer": rates["ours"].over(rates[pair.name])},
        settings={"seconds": seconds, "equal": pair.equal, "not equal": pair.different},
    )


def _run(command: list[str], warm_up_s: float, seconds: float) -> Timed:
    """Run a program until it has been measured; start-up and warm-up are not part of it."""
    ticks: list[tuple[float, int]] = []
    begin = 0.0
    # `import sebulba` adds flags that older versions of jaxlib abort at; ours adds them again.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
            env=environment,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith(PREFIX):
                    continue
                now = time.perf_counter()
                begin = begin or now + warm_up_s
                if now >= begin:
                    ticks.append((now, int(line.removeprefix(PREFIX))))
                if now >= begin + seconds and len(ticks) >= 3:
                    break
            os.killpg(process.pid, signal.SIGKILL)
        if len(ticks) < 3:
            errors.seek(0)
            sys.exit(
                f"{errors.read()}\nexpected at least 3 counts of env steps, got {len(ticks)}:"
                f" {' '.join(command)}"
            )
    (first_s, first), (last_s, last) = ticks[0], ticks[-1]
    return Timed(amount=last - first, seconds=last_s - first_s)


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("pair", nargs="?", choices=PAIRS, help="what to compare")
    parser.add_argument("--python", help="interpreter of the peer's environment")
    parser.add_argument("--checkout", default="", help="checkout of the peer's repository")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    arguments: argparse.Namespace = parser.parse_args()
    if arguments.pair is None:
        print("\n\n".join(pair.describe() for pair in PAIRS.values()))
        return
    pair = PAIRS[arguments.pair]
    if arguments.python is None or (pair.needs_checkout and not arguments.checkout):
        parser.error(f"expected --python and --checkout\n\n{pair.describe()}")
    result = measure(
        pair,
        python=arguments.python,
        checkout=arguments.checkout,
        seconds=arguments.seconds,
        repeats=arguments.repeats,
    )
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
