"""The invertible rescaling of values for learning from unclipped rewards.

Pohlen et al. 2018, "Observe and Look Further" (arXiv 1805.11593), section 3.2 and proposition A.2.
Both functions avoid cancellation: the published inverse loses most digits of a float32 near 0.
"""

import jax
import jax.numpy as jnp


def rescale(x: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """Return h(x) = sgn(x)·(√(|x| + 1) − 1) + ε·x, elementwise.

    Args:
        x: `[...]`, float.
        epsilon: ε, keeps the inverse Lipschitz.
    """
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + epsilon * x


def inverse_rescale(x: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """Return h⁻¹(x), elementwise.

    With `d = √(|y| + 1) − 1` for the result y, `|x| = ε·d² + (1 + 2ε)·d`. This is solved for d
    without subtracting nearly equal numbers, and `|y| = d·(d + 2)`.

    Args:
        x: `[...]`, float.
        epsilon: ε of `rescale`.
    """
    root = jnp.sqrt(1.0 + 4.0 * epsilon * (1.0 + epsilon + jnp.abs(x)))
    signed_d = 2.0 * x / (root + 1.0 + 2.0 * epsilon)
    return signed_d * (jnp.abs(signed_d) + 2.0)
