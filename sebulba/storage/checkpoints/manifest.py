"""The manifest of a checkpoint: its dict, and the type and checksum of every array."""

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.pytree import leaf_name
from sebulba.types import PyTree

_FORMAT = 2  # 1 was written by Orbax
_MAX_ROWS = 20
_ABSENT = "absent"


class ManifestError(ValueError):
    """The data is no manifest, is damaged, or has another format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """The type of one array. PRNG keys have the dtype `key<fry>` and the shape of the keys."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The dict of a checkpoint, and what its arrays are verified against."""

    step: int
    score: float | None
    meta: dict[str, Any]  # JSON values
    leaves: dict[str, Leaf]
    crc32: dict[str, str]  # of each leaf's bytes; of PRNG keys: of the key data

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        leaves = {
            path: {**dataclasses.asdict(leaf), "crc32": self.crc32[path]}
            for path, leaf in self.leaves.items()
        }
        value = {
            "format": _FORMAT,
            "step": self.step,
            "score": self.score,
            "meta": self.meta,
            "leaves": leaves,
        }
        return {**value, "crc32": crc32_of_json(value)}

    @classmethod
    def from_json(cls, value: Any) -> "Manifest":
        """Return the manifest of what `to_json` returned.

        Raises:
            ManifestError: `to_json` cannot have returned this.
        """
        try:
            body = {name: item for name, item in value.items() if name != "crc32"}
            if value["crc32"] != crc32_of_json(body):
                raise ManifestError(f"expected CRC32 {value['crc32']}, got {crc32_of_json(body)}")
            if value["format"] != _FORMAT:
                raise ManifestError(f"expected format {_FORMAT}, got {value['format']!r}")
            leaves = value["leaves"].items()
            return cls(
                step=value["step"],
                score=value["score"],
                meta=value["meta"],
                leaves={
                    path: Leaf(shape=tuple(leaf["shape"]), dtype=leaf["dtype"])
                    for path, leaf in leaves
                },
                crc32={path: leaf["crc32"] for path, leaf in leaves},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"expected a manifest, got {str(value)[:80]!r}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One row of the table that shows what is wrong with a checkpoint."""

    leaf: str
    stored: str
    expected: str


def flatten(tree: PyTree) -> dict[str, Any]:
    """Return the leaves in order, by paths such as `networks.params.Dense_0.kernel`.

    Raises:
        ValueError: two leaves have the same path.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = leaf_name(path)
        if name in leaves:
            raise ValueError(f"expected a different path for every leaf, got {name} twice")
        leaves[name] = leaf
    return leaves


def leaf_of(array: Any) -> Leaf:
    """Return the type of anything with a shape and a dtype."""
    return Leaf(shape=tuple(array.shape), dtype=str(array.dtype))


def crc32_of(data: np.ndarray | bytes | memoryview) -> str:
    """Return the CRC32 of bytes or of an array's elements in row-major order, as hex digits."""
    if isinstance(data, np.ndarray):
        # The buffer protocol has no types such as bfloat16.
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return f"{zlib.crc32(data):08x}"


def crc32_of_json(value: dict[str, Any]) -> str:
    """Return the CRC32 of JSON values, which a round trip through a file does not change."""
    return crc32_of(json.dumps(value, sort_keys=True).encode())


def compare(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Mismatch]:
    """Return where two mappings differ, in the order of `expected`; extra leaves come last."""
    paths = [*expected, *(path for path in stored if path not in expected)]
    return [
        Mismatch(
            leaf=path,
            stored=str(stored.get(path, _ABSENT)),
            expected=str(expected.get(path, _ABSENT)),
        )
        for path in paths
        if stored.get(path) != expected.get(path)
    ]


def table(mismatches: Sequence[Mismatch]) -> str:
    """Return the table leaf / stored / expected, of at most 20 rows."""
    rows = [("leaf", "stored", "expected")]
    rows += [(row.leaf, row.stored, row.expected) for row in mismatches[:_MAX_ROWS]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(mismatches) > _MAX_ROWS:
        lines.append(f"… and {len(mismatches) - _MAX_ROWS} more")
    return "\n".join(f"  {line}" for line in lines)
