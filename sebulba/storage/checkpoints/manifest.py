"""What a checkpoint must hold, leaf by leaf, and how what it holds differs from it."""

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.types import PyTree

_FORMAT = 1
_MOST_ROWS = 20
_ABSENT = "absent"


class ManifestError(ValueError):
    """What should be a manifest is none, is damaged, or is of another format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """The type of one array. PRNG keys are typed, `key<fry>`, and their shape is that of keys."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that a checkpoint's arrays and its dict can be verified against."""

    step: int
    score: float | None
    meta_crc32: str
    leaves: dict[str, Leaf]
    crc32: dict[str, str]  # of each leaf's bytes; a key's are those of its data

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        leaves = {
            path: {**dataclasses.asdict(leaf), "crc32": self.crc32[path]}
            for path, leaf in self.leaves.items()
        }
        value = {
            "format": _FORMAT,
            "step": self.step,
            "score": self.score,
            "meta_crc32": self.meta_crc32,
            "leaves": leaves,
        }
        return {**value, "crc32": crc32_of_meta(value)}

    @classmethod
    def from_json(cls, value: Any) -> "Manifest":
        """Returns what `to_json` gave.

        Raises:
            ManifestError: it never gave this.
        """
        try:
            body = {name: item for name, item in value.items() if name != "crc32"}
            if value["crc32"] != crc32_of_meta(body):
                raise ManifestError(f"expected CRC32 {value['crc32']}, got {crc32_of_meta(body)}")
            if value["format"] != _FORMAT:
                raise ManifestError(f"expected format {_FORMAT}, got {value['format']!r}")
            leaves = value["leaves"].items()
            return cls(
                step=value["step"],
                score=value["score"],
                meta_crc32=value["meta_crc32"],
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
    """One row of the table of what is wrong with a checkpoint."""

    leaf: str
    stored: str
    expected: str


def is_key(leaf: Any) -> bool:
    """Whether a leaf is of typed PRNG keys."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def flatten(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves by their paths, such as `networks.params.Dense_0.kernel`, in order.

    Raises:
        ValueError: two leaves have the same path.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in leaves:
            raise ValueError(f"expected every leaf to have a path of its own, got {name} twice")
        leaves[name] = leaf
    return leaves


def leaf_of(array: Any) -> Leaf:
    """Returns the type of anything with a shape and a dtype."""
    return Leaf(shape=tuple(array.shape), dtype=str(array.dtype))


def crc32_of(data: np.ndarray | bytes | memoryview) -> str:
    """Returns the CRC32 of an array's elements in row-major order, or of bytes, as hex digits."""
    if isinstance(data, np.ndarray):
        # NumPy's buffers do not know the types that JAX adds, such as bfloat16.
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return f"{zlib.crc32(data):08x}"


def crc32_of_meta(meta: dict[str, Any]) -> str:
    """Returns the CRC32 of JSON values, which is the same before and after a file."""
    return crc32_of(json.dumps(meta, sort_keys=True).encode())


def compare(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Mismatch]:
    """Returns where two mappings differ, in the order of `expected`; what is extra comes last."""
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
    """Returns the table leaf / stored / expected, of at most 20 rows."""
    rows = [("leaf", "stored", "expected")]
    rows += [(row.leaf, row.stored, row.expected) for row in mismatches[:_MOST_ROWS]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(mismatches) > _MOST_ROWS:
        lines.append(f"… and {len(mismatches) - _MOST_ROWS} more")
    return "\n".join(f"  {line}" for line in lines)
