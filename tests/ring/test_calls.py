"""How many learner cycles a call of one program holds."""

import types

import jax.numpy as jnp

from sebulba.ring.calls import Calls
from sebulba.ring.clocks import WallClock

_CAPACITY = 64
_WARM_UP = 200  # learner cycles without updates


class FakeCycles:
    """Cycles that take no time, the first of them without updates; see `Cycles`."""

    def __init__(self):
        self.num_cycles = 0

    def begin(self):
        return jnp.zeros(()), (), (), ()

    def next_cycles(self, after, most):
        first = self.num_cycles + (0 if after is None else after.num_cycles)
        return (min(most, _WARM_UP - first), 0) if first < _WARM_UP else (most, 32)

    def program(self, num_updates):
        return types.SimpleNamespace(
            call=lambda *arguments: (*arguments[:4], None, jnp.zeros(1)),
            of_cycles=lambda records, num_cycles: records,
            read=lambda records, num_cycles: None,
            capacity=_CAPACITY,
        )


def test_the_first_call_of_cycles_with_more_updates_has_one_cycle_and_the_next_ones_grow():
    cycles = FakeCycles()
    calls = Calls(clocks=[WallClock()], begin=cycles.begin())
    lengths = {0: [], 32: []}
    while len(lengths[32]) < 5:
        call, _ = calls.next(cycles)
        cycles.num_cycles += call.num_cycles
        lengths[call.num_updates].append(call.num_cycles)
    assert max(lengths[0]) == _CAPACITY
    # The call after it is dispatched before the first one has been measured.
    assert lengths[32][:2] == [1, 1] and lengths[32][-1] > 2
