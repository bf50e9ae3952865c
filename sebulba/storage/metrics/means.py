"""Means of the updates' metrics between two rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

# Fetched together, which costs less than one by one, and before they take up memory.
_MAX_PENDING = 64


class MetricMeans:
    """The mean of each metric over the updates that have it, fetched from the devices in batches.

    Sums are float64 and taken in the order of the updates, so when a batch is fetched makes no
    difference to the result.
    """

    def __init__(self) -> None:
        self._pending: list[Mapping[str, jax.Array]] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Sequence[Mapping[str, jax.Array]]) -> None:
        """Takes updates in, in their order; their metrics are scalars, here or on a device."""
        self._pending.extend(metrics)
        if len(self._pending) >= _MAX_PENDING:
            self._fetch()

    def take(self) -> dict[str, float]:
        """Returns the means, and begins anew."""
        self._fetch()
        means = {key: total / self._counts[key] for key, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores, as plain JSON values."""
        self._fetch()
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`."""
        self._pending = []
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])

    def _fetch(self) -> None:
        for update in jax.device_get(self._pending):
            for key, value in update.items():
                self._sums[key] = self._sums.get(key, 0.0) + float(value)
                self._counts[key] = self._counts.get(key, 0) + 1
        self._pending = []
