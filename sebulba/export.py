"""Export a trained policy: `python -m sebulba.export RUN_DIR [-o DIRECTORY]`.

The files need JAX and NumPy only; a copy of `export_loader.py` beside them loads them. Imports no
jax before it exports.
"""

import argparse
import importlib.util
import pathlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

from sebulba.errors import ConfigError
from sebulba.process import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DONE, program, run_command

if TYPE_CHECKING:
    from sebulba.evaluation.stored import StoredPolicy

_ACT, _ARRAYS, _DESCRIPTION, _LOADER = "act.jax", "arrays.npz", "policy.json", "policy.py"


def main() -> None:
    """Parse the command line, export, and exit with 0, 2 or 4."""
    sys.exit(export(_parser().parse_args()))


def export(options: argparse.Namespace) -> int:
    """Export as the command line requests, print the directory, and return the exit code."""
    if importlib.util.find_spec("flatbuffers") is None:
        print(
            "sebulba: jax.export needs flatbuffers: pip install 'sebulba[export]'", file=sys.stderr
        )
        return EXIT_CONFIG
    # Imported late: jax takes over a second, which --help and usage errors should not cost.
    from sebulba.evaluation.stored import load_stored_policy, parse_which
    from sebulba.storage.checkpoints.restore import CheckpointError

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
    stored: "StoredPolicy",
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
    import jax
    import jax.export
    import jax.numpy as jnp
    import numpy as np

    from sebulba.envs.spaces import action_scaling
    from sebulba.evaluation.policy import act_function, first_actor_state
    from sebulba.storage.checkpoints.manifest import is_key
    from sebulba.storage.metrics.files import write_json
    from sebulba.types import EnvStep, PyTree

    def to_leaves(tree: PyTree) -> list[jax.Array]:
        """Return plain arrays, which any process can load: of keys, the key data."""
        leaves = jax.tree.leaves(tree)
        return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]

    def from_leaves(leaves: list[jax.Array], *, like: PyTree) -> PyTree:
        expected, structure = jax.tree.flatten(like)
        restored = [
            jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(each)) if is_key(each) else leaf
            for leaf, each in zip(leaves, expected, strict=True)
        ]
        return jax.tree.unflatten(structure, restored)

    environment, select = stored.environment, act_function(stored, greedy=greedy)
    first_state = first_actor_state(stored, num_envs=num_envs, greedy=greedy, seed=seed)
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
        networks = from_leaves(parameters, like=stored.networks)
        actor_state = from_leaves(state_leaves, like=first_state)
        action, actor_state = select(networks, actor_state, env_step)
        return to_native(action), to_leaves(actor_state)

    parameters, states = to_leaves(stored.networks), to_leaves(first_state)
    observation, action_mask = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype),
        (environment.observation, environment.action_mask),
    )
    exported = jax.export.export(jax.jit(act), platforms=platforms)(
        *(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (parameters, states))),
        observation,
        jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        jax.ShapeDtypeStruct((num_envs,), jnp.bool_),
        action_mask,
    )
    directory.mkdir(parents=True, exist_ok=True)
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
        "action_space": str(space),
        "action_dtype": str(space.dtype),
        "platforms": platforms,
        "jax": jax.__version__,
    }
    write_json(directory / _DESCRIPTION, description)
    shutil.copyfile(pathlib.Path(__file__).with_name("export_loader.py"), directory / _LOADER)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("export"),
        description="Writes a trained policy as a compiled function (jax.export), its arrays and a"
        " module that loads them with JAX and NumPy only.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a finished or running run")
    parser.add_argument(
        "-o", "--output", metavar="DIRECTORY", help="default: export in the run directory"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|CYCLE",
        help="checkpoint to load; default: latest",
    )
    parser.add_argument(
        "--num-envs",
        type=int,
        default=1,
        metavar="B",
        help="number of environments that each call acts in; default: 1",
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="sample actions, as in training; default: greedy"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the samples")
    parser.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="P,P",
        help="platforms to compile for: cpu, cuda, rocm, tpu; default: cpu,cuda,tpu",
    )
    return parser


if __name__ == "__main__":
    run_command(main)
