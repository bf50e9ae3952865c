"""Write a policy as a compiled function, its arrays, and the module that loads them."""

import pathlib
import shutil
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, declared
from sebulba.envs.actions import to_native
from sebulba.errors import ConfigError
from sebulba.evaluation.policy import act_function, first_actor_state
from sebulba.evaluation.stored import StoredPolicy
from sebulba.pytree import from_arrays, to_arrays
from sebulba.storage.metrics.files import to_json
from sebulba.types import EnvStep, PyTree

_ACT, _ARRAYS, _DESCRIPTION, _LOADER = "act.jax", "arrays.npz", "policy.json", "policy.py"
FILES = (_ACT, _ARRAYS, _DESCRIPTION, _LOADER)
"""The files of an exported policy; the last one loads the others."""


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
        num_envs: rows of every call of the policy: one for each environment, or for each player.
        greedy: whether to take the mode of the policy. False: sample, and explore as in training at
            the checkpoint's env steps.
        seed: seed of the samples.
        platforms: the platforms to compile for: cpu, cuda, rocm, tpu.

    Raises:
        ConfigError: groups of players have networks of their own, and a row is of no player; or a
            file of another origin would be replaced.
    """
    present = [name for name in FILES if (directory / name).exists()]
    if present and _ACT not in present:
        raise ConfigError(
            f"{directory / present[0]} would be replaced, and is not of an earlier export. Choose"
            " another directory"
        )
    environment = stored.environment
    if stored.config.env.groups and num_envs % environment.num_players:
        raise ConfigError(
            f"num_envs: expected a multiple of {environment.num_players}, a row for each player"
            f" of each environment, since env.groups has several networks, got {num_envs}"
        )
    select = act_function(stored, greedy=greedy)
    first_state = first_actor_state(stored, num_envs=num_envs, greedy=greedy, seed=seed)
    space = environment.native_action_space
    observed = declared(stored.agent, Agent, "policy_observation")(environment.observation)
    convert = to_native(environment)
    batch = np.zeros((1, *environment.action_space.shape), environment.action_space.dtype)
    actions = jax.tree.leaves(convert(batch))  # in the environment's dtypes

    def act(
        parameters: list[jax.Array],
        state_leaves: list[jax.Array],
        observation: PyTree,
        reward: jax.Array,
        is_first: jax.Array,
        action_mask: jax.Array | None,
    ) -> tuple[PyTree, list[jax.Array]]:
        flags = jnp.zeros(num_envs, bool)
        env_step = EnvStep(
            observation=observation,
            reward=reward,
            terminated=flags,
            truncated=flags,
            is_first=is_first,
            action_mask=action_mask,
        )
        networks = from_arrays(parameters, like=stored.networks)
        actor_state = from_arrays(state_leaves, like=first_state)
        action, actor_state = select(networks, actor_state, env_step)
        return convert(action), to_arrays(actor_state)

    parameters, states = to_arrays(stored.networks), to_arrays(first_state)
    observation, action_mask = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype),
        (observed, environment.action_mask),
    )
    exported = jax.export.export(jax.jit(act), platforms=platforms)(
        *(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (parameters, states))),
        observation,
        jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        jax.ShapeDtypeStruct((num_envs,), jnp.bool_),
        action_mask,
    )
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (directory / name).unlink(missing_ok=True)  # may be a link to a file elsewhere
    (directory / _ACT).write_bytes(exported.serialize())
    arrays: dict[str, Any] = {f"parameter_{i}": np.asarray(x) for i, x in enumerate(parameters)}
    arrays |= {f"state_{i}": np.asarray(x) for i, x in enumerate(states)}
    np.savez(directory / _ARRAYS, **arrays)
    observation, action_mask = jax.tree.map(
        lambda x: {"shape": list(x.shape), "dtype": str(x.dtype)}, (observation, action_mask)
    )
    description = {
        "agent": stored.config.agent.name,
        "environment": f"{stored.config.env.suite} {stored.config.env.id}",
        "learner_cycle": stored.learner_cycle,
        "env_steps": stored.env_steps,
        "greedy": greedy,
        "num_envs": num_envs,
        "num_parameters": len(parameters),
        "num_states": len(states),
        "observation": observation,
        "action_mask": action_mask,
        "action_space": str(environment.action_space if space is None else space),
        "action_dtypes": [str(leaf.dtype) for leaf in actions],
        "platforms": platforms,
        "jax": jax.__version__,
    }
    (directory / _DESCRIPTION).write_text(to_json(description, indent=2) + "\n")
    shutil.copyfile(pathlib.Path(__file__).with_name("loader.py"), directory / _LOADER)
