"""Measure a replay buffer: adding in place, sampling sequences of frames, drawing by priority.

    python -m benchmarks.replay [--json FILE] [--repeats 7]

The bound of each time is the time to copy the same number of bytes, with NumPy on a CPU and with a
jitted copy elsewhere. The peak memory needs Linux.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit import replay
from sebulba.toolkit.replay import ReplaySpec, ReplayState
from sebulba.toolkit.replay.frame_stack import FrameStack, rebuild_stacks
from sebulba.toolkit.replay.priorities import draw
from sebulba.types import PyTree

STACK = FrameStack(size=4, axis=0)
SPEC = ReplaySpec(
    num_actors=1,
    num_envs=16,
    trajectory_length=40,
    capacity=66 * 40,  # 298 MB of frames
    sequence_length=119,
    stride=40,
    num_context_rows=STACK.num_context_rows,
    priority_exponent=0.9,
)
NUM_SEQUENCES = 64
NUM_PRIORITIES = 100_000
ROW = (jax.ShapeDtypeStruct((84, 84), jnp.uint8), jax.ShapeDtypeStruct((), bool))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Something to time, and the least number of bytes that it has to read and write."""

    run: Callable[[], Any]
    num_bytes: int = 0


class Adding:
    """Add the same trajectory to a replay buffer on each call, donating the buffer."""

    def __init__(self, rows: PyTree):
        self.state = jax.jit(functools.partial(replay.init, SPEC, ROW, ()))()
        self._rows = rows
        self._actor_id = jnp.int32(0)
        self._add = jax.jit(functools.partial(replay.add, SPEC), donate_argnums=0)

    def __call__(self) -> ReplayState:
        self.state = self._add(self.state, self._rows, (), self._actor_id)
        return self.state


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="also write the results to this file")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats (default 7)")
    arguments = parser.parse_args()

    rows_shape = (SPEC.trajectory_length, SPEC.num_envs)
    rows = (
        jax.random.bits(jax.random.key(0), (*rows_shape, 84, 84), jnp.uint8),
        jnp.zeros(rows_shape, bool),
    )
    adding = Adding(rows)
    for _ in range(SPEC.capacity // SPEC.trajectory_length):
        jax.block_until_ready(adding())

    results = _measure(_cases(adding, rows), arguments.repeats)
    peak = _peak_growth(adding)
    document = {
        "device": str(jax.devices()[0].device_kind),
        "jax": jax.__version__,
        "repeats": arguments.repeats,
        "buffer_megabytes": adding.state.rows[0].flat.nbytes / 1e6,
        "peak_growth_while_adding_megabytes": peak,
        "cases": results,
    }
    _print(document)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def _cases(adding: Adding, rows: PyTree) -> dict[str, Case]:
    key = jax.random.key(1)
    buffer_bytes = adding.state.rows[0].flat.nbytes
    frames_bytes = NUM_SEQUENCES * (SPEC.sequence_length + 1) * 84 * 84
    mass = jax.random.uniform(key, (NUM_PRIORITIES,))

    @jax.jit
    def sample(state: ReplayState, key: jax.Array) -> PyTree:
        return replay.sample(SPEC, state, key, NUM_SEQUENCES).sequences.rows

    @jax.jit
    def sample_stacks(state: ReplayState, key: jax.Array) -> jax.Array:
        frames, starts = replay.sample(SPEC, state, key, NUM_SEQUENCES).sequences.rows
        return rebuild_stacks(frames, starts, STACK)

    jitted_copy = jax.jit(jnp.copy)
    jitted_draw = jax.jit(draw, static_argnames="num_draws")
    # Lambdas look up the current state: adding donates the previous one.
    return {
        "add a trajectory, in place": Case(run=adding, num_bytes=rows[0].nbytes),
        "copy the buffer": Case(
            run=lambda: jitted_copy(adding.state.rows[0].flat), num_bytes=buffer_bytes
        ),
        "sample 64 × 120 frames": Case(
            run=lambda: sample(adding.state, key), num_bytes=frames_bytes
        ),
        "sample 64 × 120 stacks of 4": Case(
            run=lambda: sample_stacks(adding.state, key), num_bytes=STACK.size * frames_bytes
        ),
        "draw 64 of 1e5 priorities": Case(
            run=lambda: jitted_draw(key, mass, num_draws=NUM_SEQUENCES), num_bytes=mass.nbytes
        ),
    }


def _measure(cases: dict[str, Case], repeats: int) -> dict[str, dict[str, Any]]:
    """Time cases and bounds in turn, `repeats` times, after one untimed round."""
    runs: dict[str, Callable[[], Any]] = {name: case.run for name, case in cases.items()}
    for name, case in cases.items():
        runs[f"bound of {name}"] = _memory_copy(case.num_bytes)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            jax.block_until_ready(run())
            if repeat:
                seconds[name].append(time.perf_counter() - begin)
    return {
        name: {
            "milliseconds_median": 1e3 * statistics.median(seconds[name]),
            "milliseconds_min": 1e3 * min(seconds[name]),
            "milliseconds_max": 1e3 * max(seconds[name]),
            "milliseconds_bound": 1e3 * statistics.median(seconds[f"bound of {name}"]),
            "megabytes": case.num_bytes / 1e6,
        }
        for name, case in cases.items()
    }


def _memory_copy(num_bytes: int) -> Callable[[], Any]:
    if jax.default_backend() != "cpu":
        return functools.partial(jax.jit(jnp.copy), jnp.ones(num_bytes, jnp.uint8))
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    return lambda: np.copyto(target, source)


def _peak_growth(adding: Adding) -> float | None:
    """Return the peak growth of the process while adding, in megabytes; None: unknown."""
    status, clear = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")
    try:
        clear.write_text("5")  # resets VmHWM, the peak, to the resident size
    except OSError:
        return None

    def kilobytes(field: str) -> int:
        (number,) = re.findall(rf"^{field}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        return int(number)

    resident = kilobytes("VmRSS")
    for _ in range(5):
        jax.block_until_ready(adding())
    return (kilobytes("VmHWM") - resident) / 1e3


def _print(document: dict[str, Any]) -> None:
    print(
        f"jax {document['jax']} on {document['device']}, buffer of"
        f" {document['buffer_megabytes']:.0f} MB, {document['repeats']} repeats"
    )
    print(f"{'':30} {'median ms':>10} {'range ms':>20} {'bound ms':>10}")
    for name, case in document["cases"].items():
        span = f"{case['milliseconds_min']:.3f} – {case['milliseconds_max']:.3f}"
        median, bound = case["milliseconds_median"], case["milliseconds_bound"]
        print(f"{name:30} {median:10.3f} {span:>20} {bound:10.3f}")
    cases = document["cases"]
    copy = cases["copy the buffer"]["milliseconds_median"]
    share = cases["add a trajectory, in place"]["milliseconds_median"] / copy
    print(f"adding takes {share:.1%} of the time to copy the buffer")
    if document["peak_growth_while_adding_megabytes"] is not None:
        growth = document["peak_growth_while_adding_megabytes"]
        print(f"the process grows by at most {growth:.1f} MB while adding")


if __name__ == "__main__":
    main()
