"""Times convolutional updates with memory that is given back, and with memory that is kept.

    python -m benchmarks.convolutions [--torsos dqn deep] [--json FILE]

Kept is what `run.keep_memory` does. Two processes, one with each setting, are measured in turn: the
learner inside the running framework, and a plain jitted gradient step over `lax.conv`.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence

from benchmarks import harness, learner
from benchmarks.harness import Result, Timed
from sebulba.devices.xla_cpu import keep_freed_memory

_NUM_ENVS = {"deep": 4}


class Worker:
    """Another process with memory of its own, which works only when asked."""

    def __init__(self, torso: str, flags: Sequence[str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.convolutions", "--worker", torso, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, work: str) -> Timed:
        """Returns updates a second of `inside` or `bare`.

        Raises:
            RuntimeError: the process ended.
        """
        try:
            self._process.stdin.write(f"{work}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # Its last words are on stderr; what it did not answer is said below.
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"expected the rate of {work!r}, but the worker process ended")
        return Timed(amount=float(line), seconds=1.0)

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(torso: str, num_envs: int, updates: int) -> None:
    """Measures what lines of stdin ask for, and prints updates a second."""
    harness.compile_once()
    config = learner.make_config(torso=torso, num_envs=num_envs, updates=1)
    bare = learner.BareLoop(config, num_updates=updates)
    work: dict[str, Callable[[], float | Timed]] = {
        "inside": lambda: learner.inside(config, cycles=updates),
        "bare": bare,
    }
    for line in sys.stdin:
        name = line.strip()
        print(harness.rate_of(work[name]), flush=True)


def measure(*, torso: str, repeats: int) -> Result:
    """Returns updates a second of the learner and of a bare loop, with each allocator."""
    workers = {"default": Worker(torso, ()), "kept": Worker(torso, ("--keep-memory",))}
    try:
        rates = harness.interleave(
            {
                f"{work}, {name}": lambda worker=worker, work=work: worker.measure(work)
                for work in ("bare", "inside")
                for name, worker in workers.items()
            },
            repeats,
        )
    finally:
        for worker in workers.values():
            worker.close()
    plain = rates["bare, default"]
    return Result(
        name=f"convolutions, {torso}",
        unit="updates/s",
        rates=rates,
        ratios={
            "inside, default / bare, default": rates["inside, default"].over(plain),
            "inside, kept / bare, kept": rates["inside, kept"].over(rates["bare, kept"]),
            "inside, kept / bare, default": rates["inside, kept"].over(plain),
        },
        settings={"rows a batch": _NUM_ENVS.get(torso, 16) * learner.TRAJECTORY_LENGTH},
    )


def main() -> None:
    """Runs the benchmark, or a worker of it."""
    parser = harness.parser(__doc__)
    parser.add_argument("--torsos", nargs="+", default=["dqn", "deep"])
    parser.add_argument("--worker", help="serve this torso to another process")
    parser.add_argument("--keep-memory", action="store_true", help="of the worker")
    arguments = parser.parse_args()
    if arguments.worker:
        if arguments.keep_memory:
            keep_freed_memory()
        serve(arguments.worker, _NUM_ENVS.get(arguments.worker, 16), updates=4)
        return
    results = [measure(torso=torso, repeats=arguments.repeats) for torso in arguments.torsos]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
