"""Measure the cost of checkpoints: throughput with and without them, and the time of each one.

    python -m benchmarks.checkpointing configs/impala_cartpole.yaml [--interval-s 10] [--json FILE]

Any other flag is the config's, as of `python -m sebulba.train`. Each repeat is a new run, measured
without start-up and compilation; it should last for several intervals. The time of one checkpoint
is measured on an idle ring: the copy by the learner's thread, and the CPU time of all threads until
the checkpoint is complete.
"""

import os
import pathlib
import tempfile
import time

from benchmarks import harness, rings
from benchmarks.harness import Result, Series, Timed
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.hosts.agreement import Agreement
from sebulba.process import start_daemon
from sebulba.ring.make import made_ring
from sebulba.ring.ring import Ring
from sebulba.ring.running import run
from sebulba.ring.state import state_of
from sebulba.run.all_reduce import AllReduceProbe
from sebulba.run.autosave import Autosave
from sebulba.run.rows import MetricsRows
from sebulba.storage.checkpoints.checkpointer import Checkpointer, snapshot
from sebulba.storage.metrics.writers import MetricsFanOut


def measure_throughput(config: Config, *, interval_s: float, repeats: int) -> Result:
    """Measure env steps per second with and without checkpoints."""
    rates = harness.interleave(
        {
            "without checkpoints": lambda: rings.run_ring(config),
            "with checkpoints": lambda: _run_saving(config, interval_s),
        },
        repeats,
    )
    return Result(
        name=f"checkpoints of {config.agent.name} on {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios={"with / without": rates["with checkpoints"].over(rates["without checkpoints"])},
        settings={"interval_s": interval_s, "env steps": config.run.total_env_steps},
    )


def _run_saving(config: Config, interval_s: float) -> Timed:
    with made_ring(config) as ring, tempfile.TemporaryDirectory() as directory:
        rows = MetricsRows(
            ring,
            interval_env_steps=config.run.log_interval_env_steps,
            reducers=(),
            all_reduce=AllReduceProbe(ring.learner, dtype="float32", is_lock_step=False),
            files=MetricsFanOut([], print),
        )
        autosave = Autosave(
            ring,
            Checkpointer(directory, keep=config.checkpoint.keep, start_thread=start_daemon),
            rows=rows,
            agreement=Agreement(ring.learner.learner_devices, end=ring.end, max_episodes=1),
            interval_s=interval_s,
            on_warning=print,
        )
        try:
            run(ring, mode=config.run.mode, observers=[rows, autosave])
        finally:
            autosave.close(ring.end)
    return rings.rate_of(ring)


def measure_one(config: Config, *, interval_s: float, repeats: int) -> Result:
    """Measure the time of one checkpoint."""
    copied, computed = [], []
    with made_ring(config) as ring, tempfile.TemporaryDirectory() as directory:
        rings.update(ring, rings.act_one_cycle(ring))
        checkpointer = Checkpointer(directory, keep=config.checkpoint.keep)
        for step in range(repeats + 1):
            copy_s, cpu_s = _save(ring, checkpointer, step)
            copied.append(copy_s)
            computed.append(cpu_s)
        num_bytes = _size_of(pathlib.Path(directory) / str(repeats))
        checkpointer.close()
    # The first one also imports and allocates.
    copy, cpu = Series(values=tuple(copied[1:])), Series(values=tuple(computed[1:]))
    cores = len(os.sched_getaffinity(0))
    return Result(
        name="one checkpoint",
        unit="ms",
        rates={
            "copied by the learner's thread": harness.combine(lambda s: 1000 * s, copy),
            "computed by all threads": harness.combine(lambda s: 1000 * s, cpu),
        },
        ratios={
            "learner's time / interval": harness.combine(lambda s: s / interval_s, copy),
            "all threads' time / interval and cores": harness.combine(
                lambda s: s / interval_s / cores, cpu
            ),
        },
        settings={"interval_s": interval_s, "cores": cores, "bytes": f"{num_bytes:,}"},
    )


def _save(ring: Ring, checkpointer: Checkpointer, step: int) -> tuple[float, float]:
    """Save the ring; return the seconds of the copy, and the CPU seconds of the whole save."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    arrays, meta = state_of(ring)
    copy = snapshot(arrays)
    copy_s = time.perf_counter() - begin
    checkpointer.save(step, copy, meta, score=None)
    checkpointer.wait()
    return copy_s, time.process_time() - cpu_begin


def _size_of(directory: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("config", help="YAML file")
    parser.add_argument("--interval-s", type=float, default=10.0, help="between checkpoints")
    parser.add_argument("--env-steps", type=int, default=3_000_000, help="env steps per repeat")
    arguments, flags = parser.parse_known_args()
    config = rings.of_length(load_config(arguments.config, flags), arguments.env_steps)
    harness.compile_once()
    settings = {"interval_s": arguments.interval_s, "repeats": arguments.repeats}
    results = [measure_one(config, **settings), measure_throughput(config, **settings)]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
