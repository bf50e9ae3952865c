"""Train 2,000 env steps in two environments of each family, and write the table of what runs.

    python -m benchmarks.families [--only FAMILY ...] [--page docs/environments.md]

Every environment is trained in a process of its own, so one that crashes or hangs is a row of the
table. EnvPool's families are the groups of its registry. Rows of a family that is not measured stay
as they are, so environments whose packages exclude each other can be measured one after another.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import jax

import sebulba
from benchmarks import harness
from sebulba.config.plugins import package_version
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.envs.envpool_import import envpool
from sebulba.errors import ConfigError
from sebulba.storage.metrics.files import write_json
from sebulba.storage.names import CONFIG

NUM_ENV_STEPS = 2_000
TIMEOUT_S = 600.0
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
RECORDS = pathlib.Path(__file__).with_name("families.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One environment, as a config has it."""

    suite: str
    id: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: Sequence[Any] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Environments of one origin."""

    name: str
    trials: Sequence[Trial]
    package: str  # that provides it
    num_ids: int | None = None  # of EnvPool's registry


_EXTRAS_OF_ENVPOOL: dict[str, tuple[Trial, ...]] = {
    # The first two ids of these would not show what runs, and what does not.
    "envpool.pgx": (
        Trial(suite="envpool", id="Play2048-v1"),
        Trial(suite="envpool", id="TicTacToe-v1"),
    ),
    "envpool.vizdoom": (
        Trial(suite="envpool", id="Basic-v1", options={"use_combined_action": True}),
        Trial(suite="envpool", id="MultiDuel-v1"),
    ),
}


def envpool_families() -> list[Family]:
    """Return the groups of EnvPool's registry, BabyAI apart from MiniGrid."""
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name, (module, *_) in envpool.registration.registry.specs.items():
        groups["envpool.babyai" if name.startswith("BabyAI") else module].append(name)
    families = []
    for module, names in sorted(groups.items()):
        # One from each half; of an id and its aliases, the plain one.
        plain = [name for name in names if "/" not in name] or names
        chosen = (plain[len(plain) // 4], plain[3 * len(plain) // 4])
        trials = tuple(Trial(suite="envpool", id=name) for name in chosen)
        families.append(
            Family(
                name=module,
                trials=_EXTRAS_OF_ENVPOOL.get(module, trials),
                package="envpool",
                num_ids=len(names),
            )
        )
    return families


def _gymnasium(*names: str, **settings: Any) -> tuple[Trial, ...]:
    return tuple(Trial(suite="gymnasium", id=name, **settings) for name in names)


def _dm_env(name: str, **options: Any) -> tuple[Trial, ...]:
    return (Trial(suite="dm_env", id=name, options=options),)


def _suite(suite: str, *names: str) -> tuple[Trial, ...]:
    return tuple(Trial(suite=suite, id=name) for name in names)


def other_families() -> list[Family]:
    """Return Gymnasium's own families, those of packages for Gymnasium, and those in JAX."""
    image = ("minigrid.wrappers:ImgObsWrapper",)
    robot, world = "gymnasium_robotics:", "metaworld:Meta-World/MT1"
    doom = "vizdoom.gymnasium_wrapper:Vizdoom"
    families = {
        ("gymnasium classic control", "gymnasium"): _gymnasium("Acrobot-v1", "Pendulum-v1"),
        ("gymnasium toy text", "gymnasium"): _gymnasium("Taxi-v4", "Blackjack-v1"),
        ("gymnasium box2d", "box2d"): _gymnasium("LunarLander-v3", "CarRacing-v3"),
        ("gymnasium mujoco", "mujoco"): _gymnasium("Hopper-v5", "Swimmer-v5"),
        ("ale-py", "ale-py"): (
            *_suite("ale", "pong"),
            *_gymnasium("ale_py:ALE/Breakout-v5"),
        ),
        ("minigrid", "minigrid"): (
            *_gymnasium("minigrid:MiniGrid-Empty-5x5-v0", wrappers=image),
            *_gymnasium("minigrid:BabyAI-GoToRedBall-v0"),
        ),
        ("crafter", "crafter"): (
            *_gymnasium("crafter:Env"),
            *_gymnasium("crafter:Env", options={"length": 500, "reward": False}),
        ),
        ("vizdoom", "vizdoom"): _gymnasium(f"{doom}Basic-v1", f"{doom}TakeCover-v1"),
        ("nle", "nle"): _gymnasium("nle:NetHackScore-v0", "nle:NetHackStaircase-v0"),
        ("highway-env", "highway-env"): _gymnasium(
            "highway_env:highway-fast-v0", "highway_env:parking-v0"
        ),
        ("gymnasium-robotics", "gymnasium-robotics"): _gymnasium(
            f"{robot}FetchReach-v4", f"{robot}PointMaze_UMaze-v3"
        ),
        ("metaworld", "metaworld"): (
            *_gymnasium(world, options={"env_name": "reach-v3"}),
            *_gymnasium(world, options={"env_name": "push-v3"}),
        ),
        ("bsuite", "bsuite"): (
            *_dm_env("bsuite:load_from_id", bsuite_id="catch/0"),
            *_dm_env("bsuite:load_from_id", bsuite_id="memory_size/3"),
        ),
        ("dm_control", "dm_control"): (
            *_dm_env("dm_control.suite:load", domain_name="cartpole", task_name="swingup"),
            *_dm_env("dm_control.suite:load", domain_name="cheetah", task_name="run"),
        ),
        ("craftax", "craftax"): _suite(
            "craftax", "Craftax-Classic-Symbolic-v1", "Craftax-Symbolic-v1"
        ),
        ("playground", "playground"): _suite(
            "playground", "CartpoleBalance", "Go1JoystickFlatTerrain"
        ),
        ("gymnax", "gymnax"): _suite("gymnax", "CartPole-v1", "Asterix-MinAtar"),
        ("jumanji", "jumanji"): _suite("jumanji", "Snake-v1", "BinPack-v2"),
        ("pgx", "pgx"): _suite("pgx", "tic_tac_toe", "go_9x9"),
    }
    return [
        Family(name=name, trials=trials, package=package)
        for (name, package), trials in families.items()
    ]


def train_here(trial: Trial) -> dict[str, Any]:
    """Train in this process, and return what the environment is like and how it went."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        overrides = {
            "env": dataclasses.asdict(trial),
            "agent.name": "ppo",
            "run.total_env_steps": NUM_ENV_STEPS,
            "run_dir": f"{directory}/run",
        }
        try:
            config = sebulba.load_config(None, overrides)
            environment = make_environment(config.env, num_envs=1, seed=0)
            found |= _described(environment)
            environment.close()
            result = sebulba.train(config, verbose=False)
            # The default that was chosen for the task.
            found["network"] = sebulba.load_config(result.run_dir / CONFIG).agent.network
        except ConfigError as error:
            return found | {"outcome": "refused", "message": _first_line(error)}
        except Exception as error:
            return found | {
                "outcome": "fails",
                "message": f"{type(error).__name__}: {_first_line(error)}",
            }
    return found | {"outcome": "runs", "message": ""}


def _described(environment: Environment) -> dict[str, Any]:
    spec = environment.spec
    leaves, _ = jax.tree_util.tree_flatten_with_path(spec.observation)
    named = [f"{jax.tree_util.keystr(path)} {_shape(leaf)}".strip() for path, leaf in leaves]
    return {
        "observation": named if len(named) > 1 else [_shape(leaves[0][1])],
        "actions": _actions(spec.action_space),
        "is_masked": spec.action_mask is not None,
    }


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _actions(space: gymnasium.Space) -> str:
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return f"MultiDiscrete({space.nvec.tolist()})"
    return f"Box{list(space.shape)}"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def train_in_a_process(trial: Trial) -> dict[str, Any]:
    """Train in a process, and return its result; one that crashes or hangs has a result as well."""
    argument = json.dumps(dataclasses.asdict(trial))
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.families", "--trial", argument, output.name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            code: int | None = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Game engines may outlive the process that started them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text = pathlib.Path(output.name).read_text()
    found = json.loads(text) if text else {}
    if code is None:
        found |= {"outcome": "hangs", "message": f"no end after {TIMEOUT_S:g} s"}
    elif "outcome" not in found:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        found |= {"outcome": "crashes", "message": how}
    return dataclasses.asdict(trial) | found | {"wall_time_s": time.monotonic() - begin}


def measure(families: Iterable[Family], records: dict[str, Any], path: pathlib.Path) -> None:
    """Train in the environments of some families, and write the results with the earlier ones."""
    for family in families:
        if (version := package_version(family.package)) is None:
            print(f"{family.name}: {family.package} is not installed", flush=True)
            continue
        rows = []
        for trial in family.trials:
            row = train_in_a_process(trial)
            rows.append(row)
            print(f"{family.name}: {trial.id}: {row['outcome']} {row['message']}", flush=True)
        records[family.name] = {
            "package": f"{family.package} {version}",
            "num_ids": family.num_ids,
            "rows": rows,
            "commit": harness.stamp()["commit"],
        }
        write_json(path, records)


def table(records: Mapping[str, Any]) -> str:
    """Return the records as a Markdown table, a row for each environment."""
    lines = [
        "| family | ids | environment | observation | actions | network | result |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, record in sorted(records.items(), key=lambda item: _order(item[0])):
        for i, row in enumerate(record["rows"]):
            family = f"{name}, {record['package']}" if i == 0 else ""
            ids = f"{record['num_ids']:,}" if i == 0 and record["num_ids"] else ""
            cells = [family, ids, _environment_cell(row), *_space_cells(row), _result_cell(row)]
            lines.append(f"| {' | '.join(cells)} |")
    commits = sorted({record["commit"] for record in records.values()})
    lines += ["", f"Measured at {', '.join(f'`{commit}`' for commit in commits)}."]
    return "\n".join(lines)


def _order(name: str) -> tuple[int, str]:
    return (0 if name.startswith("envpool") else 1 if name.startswith("gymnasium ") else 2, name)


def _environment_cell(row: Mapping[str, Any]) -> str:
    settings = [f"`{row['suite']}` `{row['id']}`"]
    settings += [f"`options: {json.dumps(row['options'])}`"] if row["options"] else []
    settings += [f"`wrappers: {json.dumps(row['wrappers'])}`"] if row["wrappers"] else []
    return "<br>".join(settings)


def _space_cells(row: Mapping[str, Any]) -> list[str]:
    if "actions" not in row:
        return ["", "", ""]
    leaves = row["observation"]
    shown = leaves if len(leaves) <= 4 else [*leaves[:3], f"and {len(leaves) - 3} more"]
    masked = ", masked" if row["is_masked"] else ""
    return [
        "<br>".join(f"`{leaf}`" for leaf in shown),
        row["actions"] + masked,
        row.get("network", ""),
    ]


def _result_cell(row: Mapping[str, Any]) -> str:
    message = row["message"].replace("|", "\\|").replace("<", "&lt;")
    return row["outcome"] if not message else f"{row['outcome']}: {message}"


def main() -> None:
    """Measure the chosen families, or train in one environment for the process that measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], help="families whose name contains this")
    parser.add_argument("--json", type=pathlib.Path, default=RECORDS, help="where the records are")
    parser.add_argument("--page", type=pathlib.Path, help="also replace the table of this page")
    parser.add_argument("--trial", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trial is not None:
        trial, output = arguments.trial
        write_json(pathlib.Path(output), train_here(Trial(**json.loads(trial))))
        return
    records = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    families = [
        family
        for family in (*envpool_families(), *other_families())
        if not arguments.only or any(each in family.name for each in arguments.only)
    ]
    measure(families, records, arguments.json)
    if arguments.page is not None:
        harness.replace_between(arguments.page, BEGIN, END, table(records))


if __name__ == "__main__":
    main()
