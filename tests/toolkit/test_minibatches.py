"""The orders in which epochs learn from the entries of a window."""

import jax
import numpy as np
import pytest

from sebulba.toolkit.minibatches import with_orders
from tests.toolkit.learner_mesh import on_devices
from tests.toolkit.test_window import LENGTH, NUM_ENVS, make_window


@pytest.mark.parametrize(
    ("of_unrolls", "num_entries"), [(True, 2 * NUM_ENVS), (False, 2 * NUM_ENVS * LENGTH)]
)
def test_every_epoch_and_device_has_an_order_of_its_own_and_each_entry_once(
    of_unrolls, num_entries
):
    window = make_window(2)

    def orders(_):
        key = jax.random.key(0)
        return with_orders(window, key, num_epochs=3, of_unrolls=of_unrolls).order

    found = np.asarray(on_devices(orders, 2, np.zeros((1, 2))))
    assert found.shape == (2, 3, num_entries)
    np.testing.assert_array_equal(
        np.sort(found), np.broadcast_to(np.arange(num_entries), found.shape)
    )
    assert len({order.tobytes() for order in found.reshape(-1, num_entries)}) == 2 * 3
