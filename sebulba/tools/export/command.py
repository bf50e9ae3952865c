"""The export of a policy, from parsed command line to exit code."""

import argparse
import importlib.util
import pathlib
import shutil
import sys
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from sebulba import export_loader
from sebulba.envs.spaces import action_scaling
from sebulba.errors import ConfigError
from sebulba.evaluation.policy import act_function, first_actor_state
from sebulba.evaluation.stored import StoredPolicy, load_stored_policy, parse_which
from sebulba.process import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DONE
from sebulba.storage.checkpoints.manifest import is_key
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.metrics.files import write_json
from sebulba.types import EnvStep, PyTree

_ACT, _ARRAYS, _DESCRIPTION, _LOADER = "act.jax", "arrays.npz", "policy.json", "policy.py"


def export(options: argparse.Namespace) -> int:
    """Export as the command line requests, print the directory, and return the exit code."""
    if importlib.util.find_spec("flatbuffers") is None:
        print(
            "sebulba: jax.export needs flatbuffers: pip install 'sebulba[export]'", file=sys.stderr
        )
        return EXIT_CONFIG
    try:
        stored = load_stored_policy(options.run_dir, parse_which(options.checkpoint))
        directory = pathlib.Path(options.output or pathlib.Path(options.run_dir) / "export")
        export_policy(
            stored,
            directory,
            num_envs=options.num_envs,
            greedy=not options.stochastic,
            seed=options.seed,
            platforms=options.platforms.split(","),
        )
    except (ConfigError, OSError) as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(f"sebulba: CheckpointError: {error}", file=sys.stderr)
        return EXIT_CHECKPOINT
    print(f"wrote {directory}: {_ACT}, {_ARRAYS}, {_DESCRIPTION}, and {_LOADER}, which loads them")
    return EXIT_DONE


def export_policy(
    stored: StoredPolicy,
    directory: pathlib.Path,
    *,
    num_envs: int,
    greedy: bool,
    seed: int,
    platforms: list[str],
) -> None:
    """Write a policy to a directory.

    Args:
        stored: the policy.
        directory: created if missing; files of an earlier export are replaced.
        num_envs: number of environments that every call of the policy acts in.
        greedy: whether to take the mode of the policy. False: sample, and explore as in training at
            the checkpoint's env steps.
        seed: seed of the samples.
        platforms: that the function is compiled for: cpu, cuda, rocm, tpu.
    """
    exported, parameters, states = _exported(
        stored, num_envs=num_envs, greedy=greedy, seed=seed, platforms=platforms
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _ACT).write_bytes(exported.serialize())
    arrays: dict[str, Any] = {f"parameter_{i}": np.asarray(x) for i, x in enumerate(parameters)}
    arrays |= {f"state_{i}": np.asarray(x) for i, x in enumerate(states)}
    np.savez(directory / _ARRAYS, **arrays)
    environment = stored.environment
    space = environment.native_action_space or environment.action_space
    write_json(
        directory / _DESCRIPTION,
        {
            "agent": stored.config.agent.name,
            "environment": f"{stored.config.env.suite} {stored.config.env.id}",
            "learner_cycle": stored.learner_cycle,
            "env_steps": stored.env_steps,
            "greedy": greedy,
            "num_envs": num_envs,
            "num_parameters": len(parameters),
            "num_states": len(states),
            "observation": _description(_batch(environment.observation, num_envs)),
            "action_mask": _description(_batch(environment.action_mask, num_envs)),
            "action_space": str(space),
            "action_dtype": str(space.dtype),
            "platforms": platforms,
            "jax": jax.__version__,
        },
    )
    assert export_loader.__file__ is not None
    shutil.copyfile(export_loader.__file__, directory / _LOADER)


def _exported(
    stored: StoredPolicy, *, num_envs: int, greedy: bool, seed: int, platforms: list[str]
) -> tuple[jax.export.Exported, list[jax.Array], list[jax.Array]]:
    """Return the function that acts, its parameters, and the first actor state."""
    environment, select = stored.environment, act_function(stored, greedy=greedy)
    state = first_actor_state(stored, num_envs=num_envs, greedy=greedy, seed=seed)
    space = environment.native_action_space or environment.action_space
    to_native = action_scaling(space)

    def act(
        parameters: list[jax.Array],
        state_leaves: list[jax.Array],
        observation: PyTree,
        reward: jax.Array,
        is_first: jax.Array,
        action_mask: jax.Array | None,
    ) -> tuple[jax.Array, list[jax.Array]]:
        flags = jnp.zeros(num_envs, bool)
        env_step = EnvStep(
            observation=observation,
            reward=reward,
            terminated=flags,
            truncated=flags,
            is_first=is_first,
            action_mask=action_mask,
        )
        networks = _from_leaves(parameters, like=stored.networks)
        actor_state = _from_leaves(state_leaves, like=state)
        action, actor_state = select(networks, actor_state, env_step)
        return to_native(action), _to_leaves(actor_state)

    parameters, states = _to_leaves(stored.networks), _to_leaves(state)
    exported = jax.export.export(jax.jit(act), platforms=platforms)(
        *(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (parameters, states))),
        _batch(environment.observation, num_envs),
        jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        jax.ShapeDtypeStruct((num_envs,), jnp.bool_),
        _batch(environment.action_mask, num_envs),
    )
    return exported, parameters, states


def _batch(specs: PyTree, num_envs: int) -> PyTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), specs)


def _description(specs: PyTree) -> PyTree:
    return jax.tree.map(lambda x: {"shape": list(x.shape), "dtype": str(x.dtype)}, specs)


def _to_leaves(tree: PyTree) -> list[jax.Array]:
    """Return plain arrays, which any process can load: of keys, the key data."""
    leaves = jax.tree.leaves(tree)
    return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]


def _from_leaves(leaves: list[jax.Array], *, like: PyTree) -> PyTree:
    expected, structure = jax.tree.flatten(like)
    restored = [
        jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(each)) if is_key(each) else leaf
        for leaf, each in zip(leaves, expected, strict=True)
    ]
    return jax.tree.unflatten(structure, restored)
