"""Workarounds for XLA's CPU backend; none changes a program for other platforms."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

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


# XLA's CPU runtime wakes other threads when several operations are ready at once. Writing a row and
# acting from it is many operations, which together take less time than the waking. The functions
# below add data dependencies that leave one operation ready at a time: the framework's share of a
# vector step fell from 95 to 35 µs of CPU time on two cores. `optimization_barrier` does not help,
# since XLA removes it before it schedules; so they compute with values that XLA cannot predict.
#
# Measured again with jaxlib 0.10.2, CPU time of a step of 16 CartPoles: 168 µs with the
# dependencies, 210 without. The flag `xla_cpu_enable_concurrency_optimized_scheduler=false` takes
# 165 without them, but makes gradients of convolutions 3 to 8 % slower, and as a compiler option of
# single programs it changes nothing.


def map_in_order(
    function: Callable[..., jax.Array], token: jax.Array, *trees: PyTree
) -> tuple[PyTree, jax.Array]:
    """Return `function(*leaves, token)` of all leaves, and the token (int32 `[]`) after them.

    On a CPU they are computed one after the other.
    """

    def apply(*leaves: jax.Array) -> jax.Array:
        nonlocal token
        result = function(*leaves, token)
        token = token_after(result, token)
        return result

    return jax.tree.map(apply, *trees), token


def token_after(array: jax.Array, token: jax.Array) -> jax.Array:
    """Return the int32 `token`, on a CPU with a data dependency on `array`."""

    def depend(array: jax.Array, token: jax.Array) -> jax.Array:
        first = jax.lax.index_in_dim(array.reshape(-1), 0, keepdims=False)
        bits = jax.lax.bitcast_convert_type(first.astype(jnp.float32), jnp.int32)
        return token + ((bits << 1) & 1)  # Always 0, which XLA does not simplify.

    # Neither has an element that converts to float32.
    if _is_key(array) or array.size == 0:
        return token
    return jax.lax.platform_dependent(array, token, cpu=depend, default=lambda array, token: token)


def tree_after(token: jax.Array, tree: PyTree) -> PyTree:
    """Return `tree`, on a CPU with a data dependency on the token, an int32 `[]` of at least 0."""

    def depend(tree: PyTree, token: jax.Array) -> PyTree:
        is_ready = token >= 0  # Always True, which XLA does not know.
        return jax.tree.map(lambda leaf: jnp.where(is_ready, leaf, _zeros_like(leaf)), tree)

    return jax.lax.platform_dependent(tree, token, cpu=depend, default=lambda tree, token: tree)


def _zeros_like(leaf: jax.Array) -> jax.Array:
    if not _is_key(leaf):
        return jnp.zeros_like(leaf)
    data = jnp.zeros_like(jax.random.key_data(leaf))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _is_key(array: jax.Array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


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
