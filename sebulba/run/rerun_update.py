"""Rerun the non-finite update that ended a run, and show what is not finite in it."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.table

from sebulba.agent import Agent
from sebulba.comparison.starts import starts_of
from sebulba.config.loading import load_config
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.roles import assign_devices
from sebulba.errors import ConfigError
from sebulba.evaluation.stored import read_environment_spec
from sebulba.process import EXIT_DONE, EXIT_NON_FINITE
from sebulba.pytree import is_key
from sebulba.ring.programs import make_programs
from sebulba.ring.update import LearnerState, clock_of, experience_of, loss_and_gradients
from sebulba.run.rerun_start import make_console, use_kernels_of
from sebulba.storage.checkpoints.manifest import flatten
from sebulba.storage.checkpoints.restore import restore
from sebulba.storage.names import CHECKPOINTS, CONFIG, NON_FINITE
from sebulba.storage.run_dir import read_run_json
from sebulba.types import EnvStepCount, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Finding:
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


def rerun_update(run_dir: pathlib.Path, env: Sequence[str]) -> int:
    """Rerun the update that stopped a run, show what is not finite, and return the exit code.

    Makes the agent and the learner, and an environment only to read its spaces.
    """
    try:
        failure = json.loads((run_dir / NON_FINITE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"expected the directory of a run that ended with exit code {EXIT_NON_FINITE}"
            f" (non-finite), got {run_dir}: {error}"
        ) from error
    config = load_config(str(run_dir / CONFIG), env)
    use_kernels_of(config, starts_of(read_run_json(run_dir))[-1])
    devices = assign_devices(config.devices, jax.local_devices(), num_envs=config.actor.num_envs)
    programs = make_programs(config, devices, read_environment_spec(config.env))
    like = programs.learner.state_shapes()
    arrays, meta = restore(
        run_dir / CHECKPOINTS, failure["checkpoint"], {"learner": like}, partial=True
    )
    state = arrays["learner"]
    # The count includes the update itself, whose clock counts those before it.
    counts = dataclasses.replace(state.non_finite, in_a_row=state.non_finite.in_a_row - 1)
    findings = _examine(
        programs.agent,
        devices.learner_devices,
        dataclasses.replace(state, non_finite=counts),
        # Earlier versions wrote only the count after the learner cycle.
        env_steps=failure.get("env_steps", meta["progress"]["env_steps"]),
        dtype=config.learner.gradients,
    )
    _show_findings(findings, failure)
    # Training judges an update by its loss and gradients alone, too.
    judged = [each for each in findings if each.part == "gradient" or each.path == "loss"]
    return EXIT_DONE if all(each.is_finite for each in judged) else EXIT_NON_FINITE


def _examine(
    agent: Agent,
    learner_devices: LearnerDevices,
    state: LearnerState,
    *,
    env_steps: int,
    dtype: str,
) -> list[_Finding]:
    """Compute one update of a state on the learner devices, without applying it.

    Args:
        agent: the algorithm.
        learner_devices: hold the state.
        state: before the update.
        env_steps: of all hosts, learned from before the learner cycle.
        dtype: the dtype in which gradients cross between devices.

    Returns:
        The inputs in the order of their use, then the metrics, the loss first, then the gradients.
    """

    def update(state: LearnerState, count: EnvStepCount) -> tuple[PyTree, PyTree]:
        value, metrics, grads, _ = loss_and_gradients(
            agent, state, experience_of(state), clock_of(state, count), dtype=dtype
        )
        return {"loss": value, **metrics}, grads

    mapped_update = mapping.map_over_learner_devices(
        update, learner_devices, out_specs=(REPLICATED, REPLICATED)
    )
    metrics, grads = mapped_update(state, EnvStepCount.of(env_steps))
    inputs = {
        "networks": state.networks,
        "opt_state": state.opt_state,
        "experience": state.experience,
    }
    findings = []
    for part, tree in (("input", inputs), ("metric", metrics), ("gradient", grads)):
        for path, leaf in flatten(tree).items():
            if is_key(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating):
                continue
            array = np.asarray(leaf).astype(np.float32)  # NumPy has no isinf for bfloat16
            findings.append(
                _Finding(
                    part=part,
                    path=path,
                    size=array.size,
                    num_nan=int(np.isnan(array).sum()),
                    num_infinite=int(np.isinf(array).sum()),
                )
            )
    return findings


def _show_findings(findings: list[_Finding], failure: dict[str, Any]) -> None:
    console = make_console()
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
