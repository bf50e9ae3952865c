"""Rerun the update that stopped a run, and list what is not finite in it."""

import dataclasses
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.table

from sebulba.agent import Agent
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.roles import assign_devices
from sebulba.errors import ConfigError
from sebulba.process import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DONE, EXIT_NON_FINITE
from sebulba.ring.make import made_ring
from sebulba.ring.update import LearnerState, clock_of, experience_of, loss_and_gradients
from sebulba.run.training import use_compilation_cache
from sebulba.storage.checkpoints.manifest import flatten, is_key
from sebulba.storage.checkpoints.restore import CheckpointError, restore
from sebulba.storage.run_dir import CHECKPOINTS, CONFIG, NON_FINITE
from sebulba.types import PyTree, as_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """How many elements of a leaf are not finite."""

    part: str  # input, metric or gradient
    path: str
    size: int
    num_nan: int
    num_infinite: int

    @property
    def is_finite(self) -> bool:
        """Whether every element is finite."""
        return self.num_nan == self.num_infinite == 0


def rerun(run_dir: pathlib.Path) -> int:
    """Rerun the update, print what is not finite, and return the exit code."""
    try:
        failure = _read_failure(run_dir)
        config = load_config(str(run_dir / CONFIG))
        use_compilation_cache()
        # The checkpoint has the networks.
        config = dataclasses.replace(config, init_from=None)
        agent, state, progress = _restore(config, run_dir, failure["checkpoint"])
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(f"sebulba: CheckpointError: {error}", file=sys.stderr)
        return EXIT_CHECKPOINT
    learner_devices = assign_devices(config.devices, jax.local_devices()).learner_devices
    findings = examine(
        agent,
        learner_devices,
        state,
        # Earlier versions wrote only the count after the learner cycle.
        env_steps=failure.get("env_steps", progress["env_steps"]),
        dtype=config.learner.gradients,
    )
    _show(findings, failure)
    # Training judges an update by its loss and gradients alone, too.
    judged = [each for each in findings if each.part == "gradient" or each.path == "loss"]
    return EXIT_DONE if all(each.is_finite for each in judged) else EXIT_NON_FINITE


def examine(
    agent: Agent,
    learner_devices: LearnerDevices,
    state: LearnerState,
    *,
    env_steps: int,
    dtype: str = "float32",
) -> list[Finding]:
    """Compute one update of a state on the learner devices, without applying it.

    Args:
        agent: the algorithm.
        learner_devices: those that hold the state.
        state: before the update.
        env_steps: of all hosts, learned from before the learner cycle.
        dtype: in which gradients cross between devices.

    Returns:
        The inputs in the order of their use, then the metrics, the loss first, then the gradients.
    """

    def update(state: LearnerState, env_step_words: jax.Array) -> tuple[PyTree, PyTree]:
        value, metrics, grads, _ = loss_and_gradients(
            agent, state, experience_of(state), clock_of(state, env_step_words), dtype=dtype
        )
        return {"loss": value, **metrics}, grads

    mapped_update = mapping.map_over_learner_devices(
        update, learner_devices, out_specs=(REPLICATED, REPLICATED)
    )
    metrics, grads = mapped_update(state, as_words(env_steps))
    inputs = {
        "networks": state.networks,
        "opt_state": state.opt_state,
        "experience": state.experience,
    }
    return [
        *_count("input", inputs),
        *_count("metric", metrics),
        *_count("gradient", grads),
    ]


def _count(part: str, tree: PyTree) -> list[Finding]:
    findings = []
    for path, leaf in flatten(tree).items():
        if is_key(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        array = np.asarray(leaf).astype(np.float32)  # NumPy has no isinf for bfloat16
        findings.append(
            Finding(
                part=part,
                path=path,
                size=array.size,
                num_nan=int(np.isnan(array).sum()),
                num_infinite=int(np.isinf(array).sum()),
            )
        )
    return findings


def _read_failure(run_dir: pathlib.Path) -> dict[str, Any]:
    path = run_dir / NON_FINITE
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"expected the directory of a run that ended with exit code {EXIT_NON_FINITE}"
            f" (non-finite), got {run_dir}: {error}"
        ) from error


def _restore(
    config: Config, run_dir: pathlib.Path, step: int
) -> tuple[Agent, LearnerState, dict[str, Any]]:
    """Return the agent, the state that the update saw, and the progress after its cycle."""
    with made_ring(config) as ring:
        state = ring.learner.state
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        arrays, meta = restore(run_dir / CHECKPOINTS, step, {"learner": like}, partial=True)
        state = arrays["learner"]
        # The count includes the update itself, whose clock counts those before it.
        in_a_row = state.non_finite.in_a_row - 1
        counts = dataclasses.replace(state.non_finite, in_a_row=in_a_row)
        state = dataclasses.replace(state, non_finite=counts)
        return ring.agent, state, meta["progress"]


def _show(findings: list[Finding], failure: dict[str, Any]) -> None:
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = rich.table.Table(
        title=f"update {failure['update']}, learner cycle {failure['learner_cycle']}"
    )
    for column in ("part", "leaf", "elements", "NaN", "infinite"):
        table.add_column(column, justify="left" if column in ("part", "leaf") else "right")
    for each in findings:
        numbers = (f"{each.size:,}", f"{each.num_nan:,}", f"{each.num_infinite:,}")
        style = None if each.is_finite else "bold red"
        table.add_row(each.part, each.path, *numbers, style=style)
    console.print(table)
    bad = [f"{each.part} {each.path}" for each in findings if not each.is_finite]
    console.print(f"not finite: {', '.join(bad)}" if bad else "every leaf is finite")
