"""Mean metrics of the updates between two rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

# One fetch for many updates costs less than one each; the limit bounds the memory held.
_MAX_PENDING = 64


class MetricMeans:
    """The mean of each metric over the updates that have it, fetched from the devices in batches.

    Sums are float64, in the order of the updates, so the result does not depend on when a batch is
    fetched.
    """

    def __init__(self) -> None:
        self._pending: list[Mapping[str, jax.Array]] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Sequence[Mapping[str, jax.Array]]) -> None:
        """Add the metrics of updates, in order; they are on the host or on a device.

        Args:
            metrics: the metrics of one or of several updates each, `[]` or `[n]`.
        """
        self._pending.extend(metrics)
        if len(self._pending) >= _MAX_PENDING:
            self._fetch()

    def take(self) -> dict[str, float]:
        """Return the means and reset them."""
        self._fetch()
        means = {key: total / self._counts[key] for key, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def state(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint stores."""
        self._fetch()
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self._pending = []
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])

    def _fetch(self) -> None:
        # On a CPU, `device_get` takes nine times as long as NumPy. Elsewhere it starts all copies
        # before it waits for the first.
        is_on_cpu = jax.default_backend() == "cpu"
        for update in self._pending if is_on_cpu else jax.device_get(self._pending):
            for key, value in update.items():
                numbers = np.asarray(value).ravel().tolist()
                for number in numbers:
                    self._sums[key] = self._sums.get(key, 0.0) + number
                self._counts[key] = self._counts.get(key, 0) + len(numbers)
        self._pending = []
