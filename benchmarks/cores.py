"""Measure the recurrent cores: an unroll of 128 and of 1,024 rows, its gradient, and a step.

    python -m benchmarks.cores [--cores lstm gru …] [--size 64] [--num-envs 16] [--json FILE]

A core gets features of its own size. The LRU is measured twice, row by row and with the associative
scan, and GTrXL with a memory of 32 and of 128 rows.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.harness import Result
from sebulba.references import CORES
from sebulba.toolkit.cores import CoreSettings, core_settings, initial_core_state

OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "lru": {
        "lru, row by row": {"unroll": "rows"},
        "lru, associative": {"unroll": "associative"},
    },
    "gtrxl": {
        "gtrxl, memory of 32 rows": {"memory_length": 32},
        "gtrxl, memory of 128 rows": {"memory_length": 128},
    },
}
"""Variants of a core, and their options."""


@dataclasses.dataclass(frozen=True)
class Unroll:
    """Work: unroll a core over rows, or compute the gradient of an unroll, several times."""

    settings: CoreSettings
    num_rows: int
    num_envs: int
    num_times: int
    has_gradient: bool = False

    def prepare(self) -> Callable[[], float]:
        """Return a function that does the work, and returns the number of unrolls."""
        rng = np.random.default_rng(0)
        shape = (self.num_rows, self.num_envs)
        inputs = jnp.asarray(rng.normal(size=(*shape, self.settings.size)), jnp.float32)
        is_first = jnp.asarray(rng.random(shape) < 0.01)
        state = initial_core_state(self.settings, self.num_envs)
        core: Any = self.settings.make(parent=None)  # a flax module
        parameters = jax.jit(core.init)(jax.random.key(0), inputs, is_first, state)

        def loss(parameters: Any) -> jax.Array:
            return jnp.sum(jnp.square(core.apply(parameters, inputs, is_first, state)[0]))

        def forward(parameters: Any) -> Any:
            return core.apply(parameters, inputs, is_first, state)

        function = jax.jit(jax.grad(loss) if self.has_gradient else forward)

        def work() -> float:
            for _ in range(self.num_times):
                jax.block_until_ready(function(parameters))
            return float(self.num_times)

        return work


def measure(
    cores: Mapping[str, CoreSettings], *, num_rows: int, num_envs: int, num_times: int, repeats: int
) -> Result:
    """Measure all cores in turn: microseconds of an unroll, and of an unroll and its gradient."""
    work = {}
    for name, settings in cores.items():
        for kind, has_gradient in (("forward", False), ("forward and gradient", True)):
            if num_rows == 1 and has_gradient:
                continue  # a step is what an actor does
            each = Unroll(settings, num_rows, num_envs, num_times, has_gradient)
            work[f"{name}, {kind}"] = each.prepare()
    rates = harness.interleave(work, repeats)
    return Result(
        name=f"an unroll of {num_rows:,} rows" if num_rows > 1 else "a step",
        unit="unrolls/s",
        rates=rates,
        ratios={},
        microseconds={
            name: harness.combine(lambda rate: 1e6 / rate, rates[name]) for name in rates
        },
        settings={
            "size": next(iter(cores.values())).size,
            "environments": num_envs,
        },
    )


def with_variants(names: list[str], size: int) -> dict[str, CoreSettings]:
    """Return the settings of the cores, and of their variants, by their names."""
    return {
        variant: settings
        for name in names
        for variant, options in OPTIONS.get(name, {name: {}}).items()
        if (settings := core_settings(name, size, options)) is not None
    }


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--cores", nargs="+", default=list(CORES))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 128, 1024])
    arguments = parser.parse_args()
    cores = with_variants(arguments.cores, arguments.size)
    for name, settings in cores.items():
        state = initial_core_state(settings, 1)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        print(f"{name}: a state of {size:,} bytes per environment")
    results = [
        measure(
            cores,
            num_rows=num_rows,
            num_envs=arguments.num_envs,
            num_times=max(1, 400 // num_rows),
            repeats=arguments.repeats,
        )
        for num_rows in arguments.rows
    ]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
