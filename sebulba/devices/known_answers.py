"""A test at start-up: does this XLA compute reductions and convolutions right on this machine?

Versions of jaxlib have returned wrong numbers without an error. Learning from them only looks like
a bad setting, so a run should end before it starts.
"""

import contextlib
import hashlib
import pathlib
import platform
from collections.abc import Mapping

import jax
import numpy as np
from jax import lax

from sebulba.devices.xla_flags import describe_xla_flags

# One more row than the largest block of a kernel that lost rows, in jaxlib 0.10.2.
_ROWS = 32_769
_IMAGES, _KERNEL, _STRIDE = (8, 12, 12, 4), (4, 4, 4, 8), 2

Answers = Mapping[str, jax.Array | np.ndarray]


class MiscompiledError(RuntimeError):
    """XLA computes wrong numbers here."""


def check_compiler() -> None:
    """Check known answers, once for each version of jaxlib, its flags and this machine.

    That they passed is remembered beside the compiled programs, so that later starts take no time.

    Raises:
        MiscompiledError: one differs.
    """
    marker = _marker()
    if marker is not None and marker.exists():
        return
    check_known_answers()
    if marker is not None:
        # Then the next start checks again.
        with contextlib.suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()


def check_known_answers() -> None:
    """Compute a few reductions and convolutions, and compare them with NumPy's.

    All operands are small integers, so that float32 results are exact in any order of summation.

    Raises:
        MiscompiledError: one differs; names it and says what to change.
    """
    operands = _operands()
    computed = jax.device_get(_compute(operands))
    expected = _expected(operands)
    wrong = [name for name in expected if not np.array_equal(computed[name], expected[name])]
    if wrong:
        name = wrong[0]
        differs = np.not_equal(computed[name], expected[name])
        raise MiscompiledError(
            f"XLA computes wrong numbers on {jax.devices()[0].device_kind}: {', '.join(wrong)}."
            f" Of {name}, {differs.sum()} of {differs.size} elements differ, the first is"
            f" {computed[name][differs][0]} and should be {expected[name][differs][0]}."
            f" Programs ran with {describe_xla_flags() or 'no XLA_FLAGS'} and jaxlib"
            f" {jax.lib.__version__}. On a CPU, try an empty set of YNNPACK's kernels,"
            " XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type= ; then another version of jaxlib"
        )


@jax.jit
def _compute(operands: Answers) -> Answers:
    matrix, rows, square = operands["matrix"], operands["rows"], operands["square"]

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        strides = (_STRIDE, _STRIDE)
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=layout)

    output, pull_back = jax.vjp(convolve, operands["images"], operands["kernel"])
    of_images, of_kernel = pull_back(operands["gradient"])
    return {
        "sum of rows": matrix.sum(axis=0),
        "sum of columns": matrix.sum(axis=1),
        "sum of squares": (matrix * matrix).sum(),
        "maximum of columns": matrix.max(axis=1),
        "sum of squared matrix-vector products": jax.vmap(lambda row: ((square @ row) ** 2).sum())(
            rows
        ),
        "convolution": output,
        "gradient of a convolution's images": of_images,
        "gradient of a convolution's kernel": of_kernel,
    }


def _operands() -> dict[str, np.ndarray]:
    def small(*shape: int, modulus: int) -> np.ndarray:
        values = np.arange(np.prod(shape), dtype=np.float32) % modulus
        return values.reshape(shape) - modulus // 2

    side = (_IMAGES[1] - _KERNEL[0]) // _STRIDE + 1
    return {
        "matrix": small(128, 96, modulus=13),
        "rows": small(_ROWS, 3, modulus=61),
        "square": np.eye(3, dtype=np.float32),
        "images": small(*_IMAGES, modulus=11),
        "kernel": small(*_KERNEL, modulus=7),
        "gradient": small(_IMAGES[0], side, side, _KERNEL[-1], modulus=5),
    }


def _expected(operands: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    matrix, rows, kernel = operands["matrix"], operands["rows"], operands["kernel"]
    images, gradient = operands["images"], operands["gradient"]
    output, of_images, of_kernel = (np.zeros_like(each) for each in (gradient, images, kernel))
    span = _STRIDE * (gradient.shape[1] - 1) + 1
    for i, j in np.ndindex(*kernel.shape[:2]):
        seen = (slice(None), slice(i, i + span, _STRIDE), slice(j, j + span, _STRIDE))
        output += images[seen] @ kernel[i, j]
        of_images[seen] += gradient @ kernel[i, j].T
        of_kernel[i, j] = np.einsum("nhwc,nhwo->co", images[seen], gradient)
    return {
        "sum of rows": matrix.sum(axis=0),
        "sum of columns": matrix.sum(axis=1),
        "sum of squares": (matrix * matrix).sum(),
        "maximum of columns": matrix.max(axis=1),
        "sum of squared matrix-vector products": (rows**2).sum(axis=1),
        "convolution": output,
        "gradient of a convolution's images": of_images,
        "gradient of a convolution's kernel": of_kernel,
    }


def _marker() -> pathlib.Path | None:
    """Return the file that says that known answers passed; None without a compilation cache."""
    directory = jax.config.values["jax_compilation_cache_dir"]
    if directory is None:
        return None
    what = (
        jax.lib.__version__,
        describe_xla_flags(),
        platform.node(),
        platform.processor(),
        jax.devices()[0].device_kind,
        str(jax.config.values["jax_disable_most_optimizations"]),
    )
    name = hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]
    return pathlib.Path(directory) / f"known-answers-passed-{name}"
