"""Measure convolutional networks: against PyTorch, and with and without `run.keep_memory`.

    python -m benchmarks.convolutions [--torsos dqn deep] [--torch PYTHON] [--json FILE]

First the networks, forward and with gradients, also inside a `lax.scan`; with `--torch`, the
interpreter of an environment that has PyTorch, in turn with the same networks in PyTorch. Then the
learner inside the running framework and a bare jitted gradient step, in two processes that take
turns: in one of them freed memory is returned to the system.
"""

import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness, learner, rings
from benchmarks.harness import Result, Timed
from sebulba.devices.xla_workarounds import keep_freed_memory
from sebulba.toolkit.torsos import DeepTorso, DQNTorso
from sebulba.types import PyTree

_NUM_ENVS = {"deep": 4}
_NETWORKS: dict[str, type[nn.Module]] = {"dqn": DQNTorso, "deep": DeepTorso}
_BATCH_SIZE = 128
_UPDATES = 3


class Worker:
    """A process with its own allocator, which works on request."""

    def __init__(self, command: Sequence[str]):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def measure(self, work: str) -> Timed:
        """Measure the rate of the work.

        Raises:
            RuntimeError: the process has ended.
        """
        try:
            self._stdin.write(f"{work}\n")
            self._stdin.flush()
        except BrokenPipeError:
            pass  # The missing answer is reported below; its traceback is on stderr.
        line = self._stdout.readline()
        if not line:
            raise RuntimeError(f"expected the rate of {work!r}, but the worker process ended")
        return Timed(amount=float(line), seconds=1.0)

    def close(self) -> None:
        """End the process."""
        self._stdin.close()
        self._process.wait()
        self._stdout.close()


def own_worker(torso: str, *flags: str) -> Worker:
    """Start a process of this benchmark."""
    return Worker([sys.executable, "-m", "benchmarks.convolutions", "--worker", torso, *flags])


def serve(torso: str, num_envs: int, updates: int) -> None:
    """Measure the work named on each line of stdin, and print updates per second."""
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
    """Measure updates per second of the learner and of a bare loop, with both settings."""
    workers = {"default": own_worker(torso), "kept": own_worker(torso, "--keep-memory")}
    try:
        rates = harness.interleave(
            {
                f"{work}, {name}": functools.partial(worker.measure, work)
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
        settings={"rows a batch": _NUM_ENVS.get(torso, 16) * rings.TRAJECTORY_LENGTH},
    )


class Network:
    """Work: a torso on a batch of images, in observations per second."""

    def __init__(self, torso: str):
        module = _NETWORKS[torso]()
        shape = (_UPDATES, _BATCH_SIZE, 4, 84, 84)
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        self._batches = jnp.asarray(images)
        self._parameters = module.init(jax.random.key(0), self._batches[0])

        def update(parameters: PyTree, images: jax.Array) -> PyTree:
            gradients = jax.grad(lambda p: (module.apply(p, images) ** 2).sum())(parameters)
            return jax.tree.map(lambda p, gradient: p - 1e-9 * gradient, parameters, gradients)

        def scan(parameters: PyTree, batches: jax.Array) -> PyTree:
            return jax.lax.scan(lambda p, batch: (update(p, batch), None), parameters, batches)[0]

        self._forward, self._update = jax.jit(module.apply), jax.jit(update)
        self._scan = jax.jit(scan)

    def forward(self) -> int:
        """Compute features of all batches, and return the number of observations."""
        for batch in self._batches:
            jax.block_until_ready(self._forward(self._parameters, batch))
        return _UPDATES * _BATCH_SIZE

    def gradient(self) -> int:
        """Take a gradient step on each batch, and return the number of observations."""
        parameters = self._parameters
        for batch in self._batches:
            parameters = jax.block_until_ready(self._update(parameters, batch))
        return _UPDATES * _BATCH_SIZE

    def scanned(self) -> int:
        """Take the same steps in one program, and return the number of observations."""
        jax.block_until_ready(self._scan(self._parameters, self._batches))
        return _UPDATES * _BATCH_SIZE


def measure_network(*, torso: str, torch: str | None, repeats: int) -> Result:
    """Measure observations per second of a network, and of the same in PyTorch."""
    own = own_worker(torso, "--network", "--keep-memory")
    workers = {name: (own, name) for name in ("forward", "gradient", "gradient in a scan")}
    if torch is not None:
        script = pathlib.Path(__file__).with_name("torch_networks.py")
        other = Worker([torch, str(script), torso, str(_BATCH_SIZE)])
        workers |= {f"PyTorch, {name}": (other, name) for name in ("forward", "gradient")}
    try:
        rates = harness.interleave(
            {
                name: functools.partial(worker.measure, work)
                for name, (worker, work) in workers.items()
            },
            repeats,
        )
    finally:
        for worker in {worker for worker, _ in workers.values()}:
            worker.close()
    ratios = {"gradient in a scan / gradient": rates["gradient in a scan"].over(rates["gradient"])}
    if torch is not None:
        for name in ("forward", "gradient"):
            ratios[f"{name} / PyTorch"] = rates[name].over(rates[f"PyTorch, {name}"])
    return Result(
        name=f"network, {torso}",
        unit="observations/s",
        rates=rates,
        ratios=ratios,
        settings={"batch size": _BATCH_SIZE, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")},
    )


def serve_network(torso: str) -> None:
    """Measure the work named on each line of stdin, and print observations per second."""
    network = Network(torso)
    work: dict[str, Callable[[], float | Timed]] = {
        "forward": network.forward,
        "gradient": network.gradient,
        "gradient in a scan": network.scanned,
    }
    for line in sys.stdin:
        print(harness.rate_of(work[line.strip()]), flush=True)


def main() -> None:
    """Run the benchmark, or one of its workers."""
    parser = harness.parser(__doc__)
    parser.add_argument("--torsos", nargs="+", default=["dqn", "deep"])
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--networks-only", action="store_true", help="leave out the learner")
    parser.add_argument("--network", action="store_true", help="internal: measure the network")
    parser.add_argument("--worker", help="internal: measure this torso for another process")
    parser.add_argument("--keep-memory", action="store_true", help="internal: for the worker")
    arguments = parser.parse_args()
    if arguments.worker:
        if arguments.keep_memory:
            keep_freed_memory()
        if arguments.network:
            serve_network(arguments.worker)
            return
        serve(arguments.worker, _NUM_ENVS.get(arguments.worker, 16), updates=4)
        return
    if arguments.torch is None:
        print("PyTorch: skipped; --torch PYTHON names an interpreter that has it")
    results = [
        measure_network(torso=torso, torch=arguments.torch, repeats=arguments.repeats)
        for torso in arguments.torsos
    ]
    if arguments.networks_only:
        harness.report(results, arguments.json)
        return
    results += [measure(torso=torso, repeats=arguments.repeats) for torso in arguments.torsos]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
