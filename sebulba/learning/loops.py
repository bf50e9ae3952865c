"""Finds the operations that XLA computes slowly inside a loop."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_CONVOLUTION = "conv_general_dilated"


def is_slow_in_a_loop(jaxpr: Any, platform: str) -> bool:
    """Return whether a platform would compute a program much more slowly inside a loop.

    XLA on a CPU computes gradients of convolutions 8 to 16 times slower inside a loop (network of
    DQN: 77 instead of 651 observations/s). Other operations are as fast, and so are convolutions on
    accelerators.

    Args:
        jaxpr: of the program.
        platform: of the devices, such as `cpu`.
    """
    return platform == "cpu" and _CONVOLUTION in _primitives(jaxpr, platform)


def _primitives(jaxpr: Any, platform: str) -> Iterator[str]:
    """Yield the names of all primitives that the platform computes, in nested jaxprs too."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        inner: Iterable[Any] = _jaxprs(list(equation.params.values()))
        platforms = equation.params.get("branches_platforms")
        if platforms is not None:  # `lax.platform_dependent`
            inner = [equation.params["branches"][_branch(platforms, platform)]]
        for each in inner:
            yield from _primitives(each, platform)


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
