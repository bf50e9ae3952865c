"""Count the illegal actions of an agent that trains in environments with action masks.

Expected is none. Trains for 100,000 env steps in each environment, by the stepped act cycle, in
which every action can be compared with the mask of the row before it.
"""

import dataclasses
import sys
import tempfile
from typing import Any

import numpy as np

import sebulba
from benchmarks import harness
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.actions import num_choices
from sebulba.envs.base import Environment
from sebulba.errors import ConfigError
from sebulba.storage.metrics.files import write_json
from sebulba.types import EnvStep

NUM_ENV_STEPS = 100_000
IDS = {
    "envpool": (
        *("Snake-v1", "Game2048-v1", "Knapsack-v1", "Maze-v0", "TSP-v1"),  # one choice
        *("BinPack-v2", "Minesweeper-v0", "Tetris-v0"),  # combinations
        *("Cleaner-v0", "Connector-v2", "JobShop-v0"),  # a choice for each component
        "Play2048-v1",  # the mask is in info
    ),
    "gymnasium": ("Taxi-v4",),
    "jumanji": ("Snake-v1",),
    "pgx": ("tic_tac_toe", "connect_four"),
}


@dataclasses.dataclass(kw_only=True)
class Counted:
    """The actions that count as env steps."""

    actions: int = 0
    illegal: int = 0  # of `actions`
    forbidden: int = 0  # choices that were illegal
    choices: int = 0  # of all rows

    @property
    def share_forbidden(self) -> float:
        """The mean share of choices that are illegal; without them nothing is measured."""
        return self.forbidden / self.choices


class CountingEnvironment:
    """Counts the illegal actions that an environment is given."""

    def __init__(self, environment: Environment, counted: Counted):
        if environment.spec.action_mask is None:
            raise ConfigError("env.id: expected an environment with action masks, got none")
        self.num_envs, self.spec = environment.num_envs, environment.spec
        self._environment, self._counted = environment, counted
        self._sizes = num_choices(environment.spec.action_space)
        self._row: EnvStep

    def reset(self) -> EnvStep:
        """Start all episodes."""
        self._row = self._environment.reset()
        return self._row

    def step(self, action: np.ndarray) -> EnvStep:
        """Compare the actions with the masks of the row before, and step."""
        valid, action_mask = ~self._row.done, np.asarray(self._row.action_mask)
        masks = np.split(action_mask, np.cumsum(self._sizes)[:-1], axis=-1)
        chosen = action.reshape(self.num_envs, len(masks)).T
        legal = [
            np.take_along_axis(mask, choice[:, None], axis=-1)[:, 0]
            for mask, choice in zip(masks, chosen, strict=True)
        ]
        self._counted.actions += int(valid.sum())
        self._counted.illegal += int((valid & ~np.all(legal, axis=0)).sum())
        self._counted.forbidden += int((~action_mask[valid]).sum())
        self._counted.choices += action_mask[valid].size
        self._row = self._environment.step(action)
        return self._row

    def fused(self) -> None:
        """Return None, so that every step is seen."""

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


def count_illegal(*, suite: str, name: str, num_env_steps: int, agent: str = "ppo") -> Counted:
    """Train an agent in an environment, and return what was counted."""
    counted = Counted()

    def make(config: EnvConfig, *, num_envs: int, seed: int) -> CountingEnvironment:
        own = EnvConfig(suite=suite, id=name)
        return CountingEnvironment(make_environment(own, num_envs=num_envs, seed=seed), counted)

    overrides: dict[str, Any] = {
        "agent.name": agent,
        "actor.num_envs": 64,
        "actor.threads_per_device": 1,
        "actor.env_timeout_s": None,  # the first step of a JAX environment compiles
        "run.total_env_steps": num_env_steps,
    }
    with tempfile.TemporaryDirectory() as directory:
        config = sebulba.load_config(None, overrides | {"run_dir": f"{directory}/run"})
        sebulba.train(config, environment=make, verbose=False)
    return counted


def main() -> None:
    """Count in all environments whose package is installed."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", nargs="+", help="ids to count in, of those in `IDS`")
    parser.add_argument("--agent", default="ppo", help="agent that acts (default ppo)")
    arguments = parser.parse_args()
    rows, failed = [], False
    for suite, names in IDS.items():
        for name in names:
            if arguments.only is not None and name not in arguments.only:
                continue
            try:
                counted = count_illegal(
                    suite=suite, name=name, num_env_steps=NUM_ENV_STEPS, agent=arguments.agent
                )
            except ConfigError as error:
                print(f"{suite} {name}: {error}")
                continue
            failed |= counted.illegal > 0
            rows.append(
                {
                    "suite": suite,
                    "id": name,
                    "agent": arguments.agent,
                    **dataclasses.asdict(counted),
                }
            )
            print(
                f"{suite} {name}: {counted.illegal} of {counted.actions:,} actions were illegal;"
                f" {counted.share_forbidden:.0%} of the choices were",
                flush=True,
            )
    if arguments.json is not None:
        write_json(arguments.json, {"stamp": harness.stamp(), "rows": rows})
    sys.exit(failed)


if __name__ == "__main__":
    main()
