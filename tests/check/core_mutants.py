"""Plausible mistakes in the shipped cores: their source with one expression replaced."""

import importlib
import pathlib
import sys
import types

MUTANTS = {
    "attention looks across resets": (
        "gtrxl",
        "jnp.cumsum(is_first.astype(jnp.int32), axis=0)",
        "jnp.zeros(is_first.shape, jnp.int32)",
    ),
    "attention sees the next row": ("gtrxl", "(distance >= 0)", "(distance >= -1)"),
    "attention sees a row too few": ("gtrxl", "(distance <= memory)", "(distance < memory)"),
    "an unroll sees rows that acting has lost": (
        "gtrxl",
        "(distance <= memory)",
        "(distance <= memory + 1)",
    ),
    "the newest row is not remembered": (
        "gtrxl",
        "jnp.where(is_kept[..., None], known[length:], 0.0)",
        "jnp.where(is_kept[..., None], known[length - 1 : -1], 0.0)",
    ),
    "rows are not counted": (
        "gtrxl",
        "jnp.sum(is_kept, axis=0, dtype=jnp.int32)",
        "state.num_rows",
    ),
    "rows of an earlier episode are kept": (
        "gtrxl",
        "episodes[length:] == episodes[-1:]",
        "episodes[length:] >= 0",
    ),
    "gates are open": ("gtrxl", "- _GATE_BIAS", "+ _GATE_BIAS"),
    "positions count from the oldest row": (
        "gtrxl",
        "np.arange(memory, -1, -1, dtype=np.float32)",
        "np.arange(memory + 1, dtype=np.float32)",
    ),
    "the state survives a reset": ("lru", "_kept(is_first[:, None], turned)", "turned"),
    "the imaginary part survives a reset": (
        "lru",
        "jnp.where(is_first, 0.0, state[1])",
        "state[1]",
    ),
    "the state turns the other way in each unroll": ("lru", "states[1][-1]", "-states[1][-1]"),
    "inputs are not scaled": ("lru", "jnp.tile(gamma, 2)", "jnp.ones(2 * size)"),
    "the update gate is swapped": (
        "gru",
        "(1.0 - update) * candidate + update * hidden",
        "update * candidate + (1.0 - update) * hidden",
    ),
    "the gru is never reset": ("gru", "jnp.where(is_first[:, None], 0.0, hidden)", "hidden"),
}


def mutant_core(name):
    """Return `module:Name` of the mutated core."""
    module, before, after = MUTANTS[name]
    original = importlib.import_module(f"sebulba.toolkit.{module}")
    source = pathlib.Path(original.__file__).read_text()
    assert before in source, "the core has changed: write its mutant again"
    mutant = types.ModuleType(f"mutant_{name.replace(' ', '_')}")
    sys.modules[mutant.__name__] = mutant
    exec(compile(source.replace(before, after), mutant.__name__, "exec"), vars(mutant))
    core = {"gtrxl": "GTrXLCore", "lru": "LRUCore", "gru": "GRUCore"}[module]
    return f"{mutant.__name__}:{core}"
