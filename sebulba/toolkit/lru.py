"""The linear recurrent unit as a recurrent core; `cores` has the contract.

Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences" (arXiv 2303.06349).
"""

from typing import Annotated, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.ranges import Fraction, Range
from sebulba.toolkit.dense import Dense, LayerNorm
from sebulba.toolkit.scans import scan_rows

_Pair = tuple[jax.Array, jax.Array]  # real and imaginary part
_Span = tuple[_Pair, _Pair, jax.Array]  # of rows: product of λ, state at its end, is there a reset


@pytree_dataclass
class LRUState:
    """The complex state of `B` environments, as two real leaves."""

    real: jax.Array  # [B, size]
    imaginary: jax.Array  # [B, size]


class LRUCore(nn.Module):
    """A block with a diagonal linear recurrence of complex numbers.

        x_t = λ ⊙ x_{t-1} + γ ⊙ (B u_t)    y_t = Re(C x_t) + D ⊙ u_t

    (section 3 of the paper), where u is the block's input after LayerNorm. y passes a GELU and a
    gated linear unit, and is added to the block's input. The paper has batch normalisation there,
    and several blocks.

    The state decays at fixed rates, whatever the inputs are: what a row adds to it is divided by e
    after `1 / (1 - |λ|)` rows, at most 1,000 rows before training with r_max 0.999.
    """

    size: int
    r_min: Fraction = 0.9
    """Least |λ| before training."""
    r_max: Annotated[float, Range(0, below=1)] = 0.999
    """Greatest |λ| before training."""
    max_phase: Annotated[float, Range(above=0, most=6.284)] = 6.283
    """Greatest angle of λ before training, in radians per row: 2π. With a tenth, states hardly tell
    apart what came one row later: 0.19 instead of 0.95 in POPGym's RepeatPreviousEasy."""
    unroll: Literal["auto", "rows", "associative"] = "auto"
    """Row by row, or in log2(T) steps by an associative scan, whose sums have another order. auto:
    rows on a CPU, associative elsewhere."""

    def __post_init__(self):
        """Check that the radii are in order.

        Raises:
            ConfigError: r_min is greater than r_max.
        """
        super().__post_init__()
        if self.r_min > self.r_max:
            raise ConfigError(
                f"agent.core_options.r_min: expected at most r_max {self.r_max}, got {self.r_min}"
            )

    @nn.compact
    def __call__(
        self, inputs: jax.Array, is_first: jax.Array, state: LRUState
    ) -> tuple[jax.Array, LRUState]:
        """Unroll over time.

        Args:
            inputs: `[T, B, F]`.
            is_first: `[T, B]` bool, rows before which the state is zeroed.
            state: before row 0.

        Returns:
            `[T, B, size]`, and the state after row `T - 1`.
        """
        size = self.size
        nu_log = self.param("nu_log", self._init_nu_log, (size,))
        phase_log = self.param("phase_log", self._init_phase_log, (size,))
        radius = jnp.exp(-jnp.exp(nu_log))
        # So that inputs of variance 1 keep a state of variance 1, however long it remembers.
        gamma_log = self.param(
            "gamma_log", lambda _: 0.5 * jnp.log(1.0 - jnp.square(jnp.exp(-jnp.exp(nu_log))))
        )
        phase, gamma = jnp.exp(phase_log), jnp.exp(gamma_log)
        factor = (radius * jnp.cos(phase), radius * jnp.sin(phase))

        inputs = Dense(size)(inputs)
        normal = LayerNorm()(inputs)
        kernel = self.param(
            "input_kernel", nn.initializers.normal((2 * size) ** -0.5), (size, 2 * size)
        )
        # Real and imaginary part.
        kernel = kernel * jnp.tile(gamma, 2)[None]
        real, imaginary = jnp.split(normal @ kernel, 2, axis=-1)
        drive = (real, imaginary)
        scanned = (factor, drive, is_first, (state.real, state.imaginary))
        if self.unroll == "auto":
            states = lax.platform_dependent(*scanned, cpu=_row_by_row, default=_associatively)
        else:
            states = {"rows": _row_by_row, "associative": _associatively}[self.unroll](*scanned)
        outputs = jnp.concatenate(states, axis=-1)
        kernel = self.param("output_kernel", nn.initializers.normal(size**-0.5), (2 * size, size))
        skip = self.param("skip", nn.initializers.normal(1.0), (size,))
        x = nn.gelu(outputs @ kernel + normal * skip[None, None])
        values, gates = jnp.split(Dense(2 * size)(x), 2, axis=-1)
        after = LRUState(real=states[0][-1], imaginary=states[1][-1])
        return inputs + values * nn.sigmoid(gates), after

    def initial_state(self, batch_size: int) -> LRUState:
        """Return the zero state of `batch_size` environments."""
        zeros = jnp.zeros((batch_size, self.size), jnp.float32)
        return LRUState(real=zeros, imaginary=zeros)

    def _init_nu_log(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Return ν with `|λ| = exp(-exp(ν))` uniform on the ring: lemma 3.2 of the paper."""
        uniform = jax.random.uniform(key, shape)
        squares = self.r_min**2 + uniform * (self.r_max**2 - self.r_min**2)
        return jnp.log(-0.5 * jnp.log(jnp.maximum(squares, 1e-12)))

    def _init_phase_log(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.log(self.max_phase * jax.random.uniform(key, shape, minval=1e-6))


def _row_by_row(factor: _Pair, drive: _Pair, is_first: jax.Array, before: _Pair) -> _Pair:
    """Return the states `[T, B, size]` after each row.

    Args:
        factor: λ, `[size]` each.
        drive: γ ⊙ (B u_t), `[T, B, size]` each.
        is_first: `[T, B]` bool.
        before: the state before row 0, `[B, size]` each.
    """

    def step(state: _Pair, row: tuple[_Pair, jax.Array]) -> tuple[_Pair, _Pair]:
        drive, is_first = row
        turned = _times((factor[0][None], factor[1][None]), state)
        real, imaginary = _kept(is_first[:, None], turned)
        state = (real + drive[0], imaginary + drive[1])
        return state, state

    return scan_rows(step, before, (drive, is_first))[1]


def _associatively(factor: _Pair, drive: _Pair, is_first: jax.Array, before: _Pair) -> _Pair:
    """Return what `_row_by_row` does, up to rounding, in log2(T) steps."""
    is_first = jnp.broadcast_to(is_first[..., None], drive[0].shape)
    factors = tuple(jnp.broadcast_to(each[None, None], drive[0].shape) for each in factor)
    carried = _kept(is_first[0], _times((factor[0][None], factor[1][None]), before))
    drive = (drive[0].at[0].add(carried[0]), drive[1].at[0].add(carried[1]))

    def join(earlier: _Span, later: _Span) -> _Span:
        # A reset forgets all that is earlier. Its factor is never used again.
        carried = _kept(later[2], _times(later[0], earlier[1]))
        drive = (carried[0] + later[1][0], carried[1] + later[1][1])
        return _times(later[0], earlier[0]), drive, earlier[2] | later[2]

    return lax.associative_scan(join, (factors, drive, is_first))[1]


def _kept(is_first: jax.Array, state: _Pair) -> _Pair:
    """Return zeros where an episode begins: replaced, since a product with 0 would keep a NaN."""
    return jnp.where(is_first, 0.0, state[0]), jnp.where(is_first, 0.0, state[1])


def _times(x: _Pair, y: _Pair) -> _Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]
