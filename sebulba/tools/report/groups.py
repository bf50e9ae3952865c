"""Group runs that differ only in their seed, and label each group by what differs between them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sebulba.config.yaml_dialect import inline
from sebulba.tools.report.runs import Run

_IGNORED_KEYS = ("seed", "run_dir", "resume")
_MAX_SEEDS_LISTED = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one config, with one or more seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def environment(self) -> str:
        """Suite and id of the environment."""
        config = self.runs[0].config
        return f"{config.get('env.suite')} {config.get('env.id')}"

    @property
    def seeds(self) -> str:
        """The seeds of the runs, or their number if there are many."""
        if len(self.runs) == 1:
            return f"seed {self.runs[0].config.get('seed')}"
        if len(self.runs) > _MAX_SEEDS_LISTED:
            return f"{len(self.runs)} seeds"
        return f"seeds {', '.join(str(run.config.get('seed')) for run in self.runs)}"


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs whose configs differ only in seed and run directory, in order of appearance.

    A label has the agent and the environment (only the one that differs, if one does), then every
    key that differs between groups of the same agent and environment.
    """
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(repr(sorted(_experiment(run).items())), []).append(run)
    groups = list(by_config.values())
    return [Group(label=_label(group[0], groups), runs=tuple(group)) for group in groups]


def _label(run: Run, groups: list[list[Run]]) -> str:
    firsts = [group[0] for group in groups]
    differing_names = [key for key in ("agent.name", "env.id") if _differs(key, firsts)]
    parts = [str(run.config.get(key)) for key in differing_names or ["agent.name", "env.id"]]
    alike = [each for each in firsts if _names(each) == _names(run)]
    keys = dict.fromkeys(key for each in alike for key in _experiment(each))
    parts += [
        f"{key}={inline(run.config.get(key))}"
        for key in keys
        if key not in ("agent.name", "env.id") and _differs(key, alike)
    ]
    return " ".join(parts)


def _names(run: Run) -> tuple[Any, Any]:
    return run.config.get("agent.name"), run.config.get("env.id")


def _differs(key: str, runs: Sequence[Run]) -> bool:
    return any(run.config.get(key) != runs[0].config.get(key) for run in runs)


def _experiment(run: Run) -> dict[str, Any]:
    """Return the keys to compare; nulls are left out, since older runs lack newer keys."""
    return {
        key: value
        for key, value in run.config.items()
        if key not in _IGNORED_KEYS and value is not None
    }
