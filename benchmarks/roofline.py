"""Hold the least times of a config's programs against their times on this CPU.

    python -m benchmarks.roofline [CONFIG ...]

Least times are those of `sebulba compile`, at the peaks that this CPU reaches: the product of two
matrices of 2,048 × 2,048 float32, and a copy of 256 MiB. Each program of a run is called with zeros
in the shapes of its arguments. The peaks are measured in every repeat, in turn with the programs.
"""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks import harness
from benchmarks.harness import Result, Timed, combine, interleave
from sebulba.aot.program import Program, compile_program
from sebulba.aot.tracing import trace_programs
from sebulba.config.loading import load_config
from sebulba.devices.compilation_cache import use_compilation_cache
from sebulba.envs.task_defaults import with_task_defaults
from sebulba.pytree import is_key

_CONFIGS = ("impala_breakout", "gumbel_muzero_minatar_breakout", "ppo_cartpole", "impala_catch")
_MATRIX = 2_048  # rows and columns
_COPIED = 64 << 20  # numbers of 4 bytes
_MIN_S = 0.3  # of one measurement


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = harness.parser(__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG", default=_CONFIGS)
    options = parser.parse_args()
    use_compilation_cache()
    results = [measure(each, options.repeats) for each in options.configs]
    harness.report(results, options.json)


def measure(config: str, repeats: int) -> Result:
    """Return the times of a config's programs over the least times."""
    settings = with_task_defaults(load_config(config)).config
    # A fused act cycle takes the environments of EnvPool as a pointer, which cannot be made up.
    if settings.env.suite == "envpool":
        actor = dataclasses.replace(settings.actor, cycle="stepped")
        settings = dataclasses.replace(settings, actor=actor)
    run = trace_programs(settings, [jax.devices()[:1]], on_warning=print)
    work: dict[str, Callable[[], float | Timed]] = {"products": _products(), "copies": _copies()}
    work |= {program.name: _calls(program) for program in run.programs}
    rates = interleave(work, repeats)
    ratios, least = {}, {}
    for compiled in map(compile_program, run.programs):
        flops, size = sum(compiled.flops.values()), compiled.least_bytes

        def over_least(
            calls: float, products: float, copies: float, flops: float = flops, size: int = size
        ) -> float:
            return 1.0 / calls / max(flops / products, size / copies)

        series = (rates[each] for each in (compiled.name, "products", "copies"))
        ratios[compiled.name] = combine(over_least, *series)
        least[compiled.name] = {"flops": flops, "bytes": size}
    return Result(
        name=f"{config}: time of a call over the least time",
        unit="calls/s, FLOP/s or bytes/s",
        rates=rates,
        ratios=ratios,
        settings=least,
    )


def _calls(program: Program) -> Callable[[], Timed]:
    """Return a function that calls a program for a while; making its arguments does not count."""
    call = program.traced.lower().compile()
    make = jax.jit(
        lambda: jax.tree.map(_zeros, program.arguments),
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, program.arguments),
    )

    def run() -> Timed:
        seconds, num_calls = 0.0, 0
        while seconds < _MIN_S:
            arguments = jax.block_until_ready(make())  # A call may take them as its results.
            begin = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            seconds += time.perf_counter() - begin
            num_calls += 1
        return Timed(amount=num_calls, seconds=seconds)

    return run


def _zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if is_key(leaf):
        return jnp.broadcast_to(jax.random.key(0), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _products() -> Callable[[], float]:
    """Return a function that multiplies matrices, and returns the FLOPs."""
    matrix = jax.random.normal(jax.random.key(0), (_MATRIX, _MATRIX))
    multiply = jax.jit(lambda x: x @ x)

    def run() -> float:
        jax.block_until_ready([multiply(matrix) for _ in range(4)])
        return 4 * 2.0 * _MATRIX**3

    return run


def _copies() -> Callable[[], float]:
    """Return a function that reads and writes memory, and returns the bytes."""
    source = jnp.ones(_COPIED, jnp.float32)
    add = jax.jit(lambda x: x + 1.0)

    def run() -> float:
        jax.block_until_ready(add(source))
        return 2.0 * source.nbytes

    return run


if __name__ == "__main__":
    main()
