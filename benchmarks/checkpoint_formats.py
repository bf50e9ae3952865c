"""Measure what it takes to save and restore a pytree, in the format of Sebulba and in others.

    python -m benchmarks.checkpoint_formats [--mib 2048] [--json FILE]

The pytree has one large replay leaf and 60 small ones. Each measurement runs in a new process. A
thread that only counts shows how much of the interpreter a save in the background leaves to others.
"""

import concurrent.futures
import multiprocessing
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from benchmarks import harness
from benchmarks.harness import Result, Series
from sebulba.run.supervision import start_daemon
from sebulba.storage.checkpoints.checkpointer import Checkpointer, Snapshot
from sebulba.storage.checkpoints.manifest import leaf_of
from sebulba.storage.checkpoints.restore import restore

Arrays = dict[str, np.ndarray]
Shapes = dict[str, jax.ShapeDtypeStruct]

FILLS = ("pixels", "floats")
UNITS = {
    "call": "ms",
    "save": "s",
    "restore": "s",
    "peak memory of save": "MiB",
    "peak memory of restore": "MiB",
    "disk": "MiB",
    "counting during the save / without": "%",
    "longest pause of counting": "ms",
}


class Format(Protocol):
    """One way to store a pytree in an empty directory."""

    def save(self, directory: pathlib.Path, arrays: Arrays) -> Callable[[], Any]:
        """Start to save; return a function that waits for the end."""
        ...

    def restore(self, directory: pathlib.Path, like: Shapes) -> Any:
        """Return the arrays."""
        ...


class Sebulba:
    """`arrays.npz` and a manifest with checksums, which `restore` verifies."""

    def save(self, directory: pathlib.Path, arrays: Arrays) -> Callable[[], Any]:
        """Save the arrays as they are: `snapshot` copies them in all formats."""
        state = Snapshot(leaves={name: leaf_of(x) for name, x in arrays.items()}, arrays=arrays)
        checkpointer = Checkpointer(directory, keep=1, start_thread=start_daemon)
        checkpointer.save(0, state, {}, score=None)
        return checkpointer.wait

    def restore(self, directory: pathlib.Path, like: Shapes) -> Any:
        """Read and verify."""
        return restore(directory, 0, like)


class Orbax:
    """Orbax as of one process, without checksums of the elements."""

    def save(self, directory: pathlib.Path, arrays: Arrays) -> Callable[[], Any]:
        """Save with its asynchronous checkpointer."""
        import orbax.checkpoint as ocp

        checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        checkpointer.save(directory / "0", args=ocp.args.PyTreeSave(arrays))
        return checkpointer.wait_until_finished

    def restore(self, directory: pathlib.Path, like: Shapes) -> Any:
        """Read with its checkpointer."""
        import orbax.checkpoint as ocp

        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(directory / "0", args=ocp.args.PyTreeRestore(like))


class TensorStore:
    """A zarr array for each leaf, without compression."""

    def save(self, directory: pathlib.Path, arrays: Arrays) -> Callable[[], Any]:
        """Save in TensorStore's own threads."""
        import tensorstore as ts

        writes = []
        for name, array in arrays.items():
            settings: dict[str, Any] = {"create": True, "dtype": array.dtype, "shape": array.shape}
            store = ts.open(_zarr(directory / name), **settings).result()
            writes.append(store.write(array))
        return lambda: [write.result() for write in writes]

    def restore(self, directory: pathlib.Path, like: Shapes) -> Any:
        """Read all arrays at once."""
        import tensorstore as ts

        reads = [ts.open(_zarr(directory / name), read=True).result().read() for name in like]
        return [read.result() for read in reads]


class Msgpack:
    """`flax.serialization`, one file."""

    def save(self, directory: pathlib.Path, arrays: Arrays) -> Callable[[], Any]:
        """Save in a thread."""
        import flax.serialization

        def write() -> None:
            with open(directory / "arrays", "wb") as file:
                file.write(flax.serialization.msgpack_serialize(arrays))
                os.fsync(file.fileno())

        return start_daemon(write, "writer").join

    def restore(self, directory: pathlib.Path, like: Shapes) -> Any:
        """Read the file."""
        import flax.serialization

        return flax.serialization.msgpack_restore((directory / "arrays").read_bytes())


FORMATS: dict[str, type[Format]] = {
    "Sebulba": Sebulba,
    "Orbax": Orbax,
    "TensorStore, zarr": TensorStore,
    "Flax, msgpack": Msgpack,
}


def _zarr(path: pathlib.Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}


def make_arrays(fill: str, mib: int) -> Arrays:
    """Return the replay leaf, of Atari-like frames or of floats, and 60 small leaves."""
    generator = np.random.default_rng(0)
    if fill == "pixels":  # as compressible as the frames of Breakout and Seaquest
        block = np.zeros((1024, 84, 84), np.uint8)
        block[:, 20:30, 20:40] = generator.integers(0, 256, (1024, 10, 20), dtype=np.uint8)
    else:
        block = generator.standard_normal((4096, 1024), np.float32)
    replay = np.concatenate([block] * max(1, mib * 2**20 // block.nbytes))
    small = generator.standard_normal((60, 128, 64), np.float32)
    return {"replay": replay} | {f"kernel{i}": kernel for i, kernel in enumerate(small)}


class Counting:
    """A thread that counts, and notices its own pauses."""

    def __init__(self) -> None:
        self._is_over = False
        self._count = 0
        self._begin = time.perf_counter()
        self.longest_pause_s = 0.0
        self._thread = start_daemon(self._run, "counting")

    def stop(self) -> float:
        """End the thread; return counts per second."""
        seconds = time.perf_counter() - self._begin
        self._is_over = True
        self._thread.join()
        return self._count / seconds

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._is_over:
            now = time.perf_counter()
            self.longest_pause_s = max(self.longest_pause_s, now - last)
            self._count, last = self._count + 1, now


def measure_save(name: str, fill: str, mib: int, directory: pathlib.Path) -> dict[str, float]:
    """Save once; return what that took, by the names of `UNITS`."""
    arrays, format_ = make_arrays(fill, mib), FORMATS[name]()
    (directory / "first").mkdir()
    format_.save(directory / "first", {"x": np.zeros(3)})()  # imports, and starts threads
    (directory / "second").mkdir()
    alone = Counting()
    time.sleep(1.0)
    rate = alone.stop()
    memory, counting, begin = _peak_mib(), Counting(), time.perf_counter()
    wait = format_.save(directory / "second", arrays)
    call_s = time.perf_counter() - begin
    wait()
    save_s = time.perf_counter() - begin
    files = [path for path in (directory / "second").rglob("*") if path.is_file()]
    return {
        "counting during the save / without": 100 * counting.stop() / rate,
        "longest pause of counting": 1000 * counting.longest_pause_s,
        "call": 1000 * call_s,
        "save": save_s,
        "peak memory of save": _peak_mib() - memory,
        "disk": sum(path.stat().st_size for path in files) / 2**20,
    }


def measure_restore(name: str, shapes: Shapes, directory: pathlib.Path) -> dict[str, float]:
    """Restore once; return what that took, by the names of `UNITS`."""
    format_, memory = FORMATS[name](), _peak_mib()
    format_.restore(directory / "first", {"x": jax.ShapeDtypeStruct((3,), np.float64)})
    begin = time.perf_counter()
    format_.restore(directory / "second", shapes)
    restore_s = time.perf_counter() - begin
    return {"restore": restore_s, "peak memory of restore": _peak_mib() - memory}


def _peak_mib() -> float:
    # Not `ru_maxrss`: a new process inherits that of the process which started it.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(fill: str, mib: int, repeats: int) -> list[Result]:
    """Return a result for each of `UNITS`."""
    values: dict[str, dict[str, list[float]]] = {
        unit: {name: [] for name in FORMATS} for unit in UNITS
    }
    arrays = make_arrays(fill, mib)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()}
    del arrays
    for _ in range(repeats):
        for name in FORMATS:
            with tempfile.TemporaryDirectory(prefix="sebulba-") as text:
                directory = pathlib.Path(text)
                taken = _in_a_process(measure_save, name, fill, mib, directory)
                taken |= _in_a_process(measure_restore, name, shapes, directory)
            for unit, value in taken.items():
                values[unit][name].append(value)
    return [
        Result(
            name=quantity,
            unit=unit,
            rates={name: Series(values=tuple(each)) for name, each in values[quantity].items()},
            ratios={},
            settings={"replay of": fill, "MiB": mib},
        )
        for quantity, unit in UNITS.items()
    ]


def _in_a_process(function: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(function, *arguments).result()


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--mib", type=int, default=2048, help="size of the replay leaf")
    arguments = parser.parse_args()
    results = [each for fill in FILLS for each in measure(fill, arguments.mib, arguments.repeats)]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
