"""Workarounds for XLA's CPU backend; none changes a program for other platforms."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.pytree import is_key
from sebulba.types import PyTree

_CONVOLUTION = "conv_general_dilated"
# Batch, rows, columns, channels: the layout that XLA has fast kernels for on a CPU.
_FAST_LAYOUT = jax.lax.conv_dimension_numbers((1, 1, 1, 1), (1, 1, 1, 1), ("NHWC", "HWIO", "NHWC"))

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4
_ARENA_MAX = -8

_KEEP_FREED_MEMORY = {
    _MMAP_MAX: 0,
    _TRIM_THRESHOLD: 2**31 - 1,
    _TOP_PAD: 64 << 20,
    # The arenas of other threads are too small for large blocks.
    _ARENA_MAX: 1,
}


def keep_freed_memory() -> bool:
    """Make glibc reuse large freed blocks; call before JAX starts its threads.

    XLA allocates the results and temporaries of every program. By default glibc unmaps large blocks
    and the kernel clears every page of the next one, which takes more than half of a convolutional
    update: with kept blocks, the network of DQN learns 2.06 times as fast (docs/benchmarks.md). In
    exchange all threads share one arena, so small networks may get slower.

    Returns:
        Whether the settings apply; False for other C libraries.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(name, value) for name, value in _KEEP_FREED_MEMORY.items()
    )


def bound_programs_in_flight(results: Sequence[PyTree]) -> None:
    """Wait for all but the newest of the results that were dispatched.

    On several CPU devices, more than 32 dispatched programs with collectives starve XLA's thread
    pool: the process aborts after 40 s ("Termination timeout"), or hangs if there are several. One
    program in the queue behind the running one keeps the devices busy.
    """
    if len(results) > 1:
        jax.block_until_ready(results[-2])


class OneAtATime:
    """Makes a CPU compute the operations of a jitted function one after the other.

    XLA's CPU runtime wakes other threads when several operations are ready at once. Writing a row
    and acting from it is many operations, which together take less time than the waking. So each
    operation gets a data dependency on the one before, through a counter. `optimization_barrier`
    does not help, since XLA removes it before it schedules; so the dependencies are computations
    whose results XLA cannot predict.

    Measured with jaxlib 0.10.2: CPU time of a step of 16 CartPoles 168 µs with the dependencies and
    210 without, and without them `impala_cartpole` makes 0.945 of the env steps/s (median of six
    pairs). The flag `xla_cpu_enable_concurrency_optimized_scheduler=false` takes 165 µs without
    them, but makes gradients of convolutions 3 to 8 % slower, and as a compiler option of single
    programs it changes nothing.

    Attributes:
        counter: `[]` int32 of at least 0. Its value never changes.
    """

    def __init__(self, counter: jax.Array):
        self.counter = counter

    def map(self, function: Callable[..., jax.Array], *trees: PyTree) -> PyTree:
        """Return `function(*leaves, counter)` of all leaves, computed one after the other."""

        def apply(*leaves: jax.Array) -> jax.Array:
            result = function(*leaves, self.counter)
            self.wait_for(result)
            return result

        return jax.tree.map(apply, *trees)

    def wait_for(self, array: jax.Array) -> None:
        """Compute everything that follows after `array`."""

        # Neither has an element that converts to float32.
        if not is_key(array) and array.size > 0:
            self.counter = _after(array, self.counter)

    def follow(self, tree: PyTree) -> PyTree:
        """Return `tree`; what is computed from it comes after everything before."""

        def depend(tree: PyTree, counter: jax.Array) -> PyTree:
            is_ready = counter >= 0  # Always True, which XLA does not know.
            return jax.tree.map(lambda leaf: jnp.where(is_ready, leaf, _zeros_like(leaf)), tree)

        return jax.lax.platform_dependent(
            tree, self.counter, cpu=depend, default=lambda tree, counter: tree
        )


@jax.custom_batching.custom_vmap
def _after(array: jax.Array, counter: jax.Array) -> jax.Array:
    """Return the counter, on a CPU once the array is computed."""

    def depend(array: jax.Array, counter: jax.Array) -> jax.Array:
        first = jax.lax.index_in_dim(array.reshape(-1), 0, keepdims=False)
        bits = jax.lax.bitcast_convert_type(first.astype(jnp.float32), jnp.int32)
        return counter + ((bits << 1) & 1)  # Always 0, which XLA does not simplify.

    return jax.lax.platform_dependent(
        array, counter, cpu=depend, default=lambda array, counter: counter
    )


@_after.def_vmap
def _after_in_batch(
    axis_size: int, is_batched: list[bool], array: jax.Array, counter: jax.Array
) -> tuple[jax.Array, bool]:
    """Let one counter wait for all arrays: writing at a counter of each would be a scatter."""
    if is_batched[1]:  # They may differ.
        counters = [_after(array, each) for each in counter]
        return jnp.stack(counters), True
    return _after(array, counter), False


def _zeros_like(leaf: jax.Array) -> jax.Array:
    if not is_key(leaf):
        return jnp.zeros_like(leaf)
    data = jnp.zeros_like(jax.random.key_data(leaf))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def is_slow_in_a_loop(jaxpr: Any, platform: str) -> bool:
    """Return whether a platform would compute a program much more slowly inside a loop.

    XLA on a CPU has fast convolutions for one layout. Outside of loops it reorders those of other
    layouts, which JAX's gradients of convolutions have; inside they are 8 to 16 times slower
    (network of DQN: 77 instead of 651 observations/s). Other operations are as fast, and so are
    convolutions on accelerators, and `sebulba.toolkit.convolutions` everywhere.

    Args:
        jaxpr: of the program.
        platform: of the devices, such as `cpu`.
    """
    return platform == "cpu" and any(
        equation.primitive.name == _CONVOLUTION
        and equation.params["dimension_numbers"] != _FAST_LAYOUT
        for equation, _ in equations(jaxpr, platform)
    )


def equations(jaxpr: Any, platform: str, *, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Yield all equations that a platform computes, in nested jaxprs too, and how often at least.

    A loop whose length is not known counts as one turn, and a branch that depends on a number as
    0 times. What is mapped over devices counts once for each of them.

    Args:
        jaxpr: of a program.
        platform: of the devices, such as `cpu`.
        times: how often the program runs.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation, times
        inner: Iterable[Any] = _jaxprs(list(equation.params.values()))
        platforms = equation.params.get("branches_platforms")
        if platforms is not None:  # `lax.platform_dependent`
            inner = [equation.params["branches"][_branch(platforms, platform)]]
        turns = 1
        if equation.primitive.name == "scan":
            turns = equation.params["length"]
        elif equation.primitive.name == "shard_map":
            turns = equation.params["mesh"].size
        elif equation.primitive.name == "cond" and platforms is None:
            turns = 0
        for each in inner:
            yield from equations(each, platform, times=times * turns)


def _branch(platforms: Sequence[Sequence[str] | None], platform: str) -> int:
    """Return the branch of a platform; None, the last, stands for all others."""
    matches = (platform in names for names in platforms if names is not None)
    return next((i for i, is_match in enumerate(matches) if is_match), len(platforms) - 1)


def _jaxprs(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _jaxprs(each)
    elif hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        yield value
