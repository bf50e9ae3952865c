"""Finds the operations that XLA computes slowly inside a loop."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax import lax

_CONVOLUTION = "conv_general_dilated"
# Batch, rows, columns, channels: the layout that XLA has fast kernels for on a CPU.
_FAST_LAYOUT = lax.conv_dimension_numbers((1, 1, 1, 1), (1, 1, 1, 1), ("NHWC", "HWIO", "NHWC"))


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
        for equation in _equations(jaxpr, platform)
    )


def _equations(jaxpr: Any, platform: str) -> Iterator[Any]:
    """Yield all equations that the platform computes, in nested jaxprs too."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation
        inner: Iterable[Any] = _jaxprs(list(equation.params.values()))
        platforms = equation.params.get("branches_platforms")
        if platforms is not None:  # `lax.platform_dependent`
            inner = [equation.params["branches"][_branch(platforms, platform)]]
        for each in inner:
            yield from _equations(each, platform)


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
