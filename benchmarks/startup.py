"""Measure start-up: seconds from the start of the process to the end of the first learner cycle.

    python -m benchmarks.startup [CONFIG] [--json FILE]

Any other flag is the config's. Each repeat starts the config twice, as a user would: with an empty
compilation cache, and with the cache that the first start filled. An untimed start before them
writes the bytecode of all modules that a start imports.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import harness
from benchmarks.counting import bytecode_variables, cache_variables
from benchmarks.harness import Result, Series

CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "impala_cartpole.yaml"
_DEADLINE_S = 120.0
_POLL_S = 0.005


def measure(config: str, flags: list[str], *, repeats: int) -> Result:
    """Measure the seconds of first and second starts."""
    seconds: dict[str, list[float]] = {"untimed": [], "first start": [], "second start": []}
    with tempfile.TemporaryDirectory() as bytecode:
        for names in (["untimed"], *[["first start", "second start"]] * repeats):
            with tempfile.TemporaryDirectory() as folder:
                for number, name in enumerate(names):
                    taken = start(
                        config,
                        flags,
                        run_dir=pathlib.Path(folder) / str(number),
                        cache=pathlib.Path(folder) / "cache",
                        bytecode=pathlib.Path(bytecode),
                    )
                    seconds[name].append(taken)
    del seconds["untimed"]
    return Result(
        name="start to first update",
        unit="s",
        rates={name: Series(values=tuple(values)) for name, values in seconds.items()},
        ratios={},
        settings={"config": pathlib.Path(config).name},
    )


def start(
    config: str,
    flags: list[str],
    *,
    run_dir: pathlib.Path,
    cache: pathlib.Path,
    bytecode: pathlib.Path,
) -> float:
    """Start a run, kill it after its first learner cycle, and return the seconds until then.

    Args:
        config: its file.
        flags: of the config.
        run_dir: the new run directory.
        cache: the directory of compiled programs.
        bytecode: the directory of the modules' bytecode.

    Raises:
        RuntimeError: the run ended, or took longer than 120 s; the message has what it printed.
    """
    command = [sys.executable, "-m", "sebulba.train", config, "--run-dir", str(run_dir)]
    command += ["--run.log-interval-env-steps", "1", *flags]
    variables = cache_variables(str(cache)) | bytecode_variables(str(bytecode))
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while not _has_row(run_dir / "metrics.jsonl"):
                seconds = time.perf_counter() - begin
                if process.poll() is not None or seconds > _DEADLINE_S:
                    output.seek(0)
                    raise RuntimeError(
                        f"expected a row of metrics, got none in {seconds:.1f} s:"
                        f" {' '.join(command)}\n{output.read()}"
                    )
                time.sleep(_POLL_S)
            return time.perf_counter() - begin
        finally:
            process.kill()
            process.wait()


def _has_row(path: pathlib.Path) -> bool:
    return path.exists() and b"\n" in path.read_bytes()


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    arguments, config, flags = harness.parse_with_config(parser, CONFIG)
    harness.report([measure(config, flags, repeats=arguments.repeats)], arguments.json)


if __name__ == "__main__":
    main()
