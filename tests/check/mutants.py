"""Mutate the shipped agents' source, and see whether the check finds each mutant.

    python -m tests.check.mutants [--list] [--sample N] [--only MODULE …] [--every] [--table]

Runs of some modules with the same `--results FILE` add up: the last one, of all modules and with
`--table`, examines nothing again.

A mutant is *equivalent* if it computes what the original does, or for a reason in `EQUIVALENT`;
*found* if a check fails; *missed* otherwise. One that raises an error at once is *broken*.
"""

import argparse
import ast
import collections
import copy
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sebulba.config import Config

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "agents" / "sebulba_agents"
# The agents, of `test_faults.AGENTS`, that run a module's code. No single one runs all of `ppo`, or
# of `pqn`.
AGENTS_OF = {
    "impala": ("impala",),
    "actor_critic": ("normalised ppo",),
    "ppo": ("ppo", "lagging ppo"),
    "pqn": ("pqn", "recurrent pqn"),
    "ddqn": ("ddqn",),
    "q_learning": ("r2d2",),
    "target_networks": ("r2d2",),
    "r2d2": ("r2d2",),
    "sac": ("sac",),
}
_REDUCTIONS = ("mean_share", "masked_moments", "reduce")
_EVERY = ("every", "jnp.ones_like(drawn)")  # masks that leave nothing out
_SWAPS = {"online": "target", "target": "online", "terminated": "truncated"}
_LONG_SWAPS = {"networks.target_critics": "networks.online.critics"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "impala": {"normalize_observations": True, "normalize_rewards": True, "reward_clip": 1.0},
    "ppo": {"value_clip": 0.2},
    "normalised ppo": {"normalize_observations": True, "normalize_rewards": True},
    "recurrent pqn": {"lstm_size": 4, "num_minibatches": 2},
    # Else the short run never sees a copy to the target network.
    "ddqn": {"target_period": 2},
    "r2d2": {"target_period": 2},
}
# By module and original expression: why the loss and the actions are the same up to rounding.
EQUIVALENT = {
    ("ppo", "std + _STD_EPSILON"): "1e-8 is lost in rounding beside a standard deviation",
    ("pqn", "jax.lax.stop_gradient(values[:-1])"): "`update_experience` is not differentiated",
    ("q_learning", "jax.lax.stop_gradient(bootstrap_q)"): "`n_step_returns` stops the gradient",
    ("r2d2", "jax.lax.stop_gradient(networks.target)"): "bootstrap values have no gradient anyway",
    ("r2d2", "jax.lax.stop_gradient(params)"): "the state after the burn-in has none anyway",
    (
        "r2d2",
        "jax.lax.stop_gradient(lstm)",
    ): "neither parameters nor states of the burn-in have one",
    ("r2d2", "jax.lax.stop_gradient(td_errors)"): "priorities are no part of the loss",
}
# Why no question finds it.
REASONS = {
    ("sac", "-float(action_size)"): "a setting, not an error: the default target entropy",
    ("r2d2", "length + 1"): "a setting, not an error: the default stride",
    ("sac", "networks.target_critics"): "target critics that follow at once, within `polyak`",
    ("q_learning", "value + advantage"): "another parametrisation of the same action values",
    (
        "q_learning",
        "value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)",
    ): "another parametrisation of the same action values",
}
TABLE = ROOT / "docs" / "check.md"
CACHE = ROOT / ".pytest_cache" / "jax"
_BEGIN, _END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One changed expression of a module."""

    module: str
    line: int
    operator: str
    before: str
    after: str
    tree: ast.Module = dataclasses.field(repr=False)


def _is_all_but_first(node: ast.AST) -> bool:
    return isinstance(node, ast.Slice) and ast.unparse(node) == "1:"


def _is_all_but_last(node: ast.AST) -> bool:
    return isinstance(node, ast.Slice) and ast.unparse(node) == ":-1"


def _off_by_one(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Subscript) and _is_all_but_first(node.slice):
        node.slice = ast.Slice(upper=ast.UnaryOp(ast.USub(), ast.Constant(1)))
        return node
    if isinstance(node, ast.Subscript) and _is_all_but_last(node.slice):
        node.slice = ast.Slice(lower=ast.Constant(1))
        return node
    return None


def _without_mask(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _REDUCTIONS and len(node.args) == 2:
        if ast.unparse(node.args[1]) in _EVERY:
            return None
        node.args[1] = ast.parse(f"jnp.ones_like({ast.unparse(node.args[1])})", mode="eval").body
        return node
    return None


def _without_stop_gradient(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("stop_gradient"):
        return node.args[0]
    return None


def _other_sign(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node
    is_number = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not is_number:
        return node.operand
    return None


def _swapped(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Attribute) and ast.unparse(node) in _LONG_SWAPS:
        return ast.parse(_LONG_SWAPS[ast.unparse(node)], mode="eval").body
    if isinstance(node, ast.Attribute) and node.attr in _SWAPS:
        node.attr = _SWAPS[node.attr]
        return node
    return None


def _same_key(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.keyword) and node.arg == "key" and ast.unparse(node.value) == "key":
        node.value = ast.parse("actor_state.key", mode="eval").body
        return node
    return None


OPERATORS: dict[str, Callable[[ast.AST], ast.AST | None]] = {
    "index off by one": _off_by_one,
    "mask dropped": _without_mask,
    "stop_gradient removed": _without_stop_gradient,
    "sign flipped": _other_sign,
    "leaf swapped": _swapped,
    "key reused": _same_key,
}


class _Replace(ast.NodeTransformer):
    """Applies an operator at the place with a number, counted over the places that it fits."""

    def __init__(self, operator: Callable[[ast.AST], ast.AST | None], number: int):
        self.operator, self.number = operator, number
        self.count, self.found = 0, None

    def visit(self, node: ast.AST) -> ast.AST:
        changed = self.operator(copy.deepcopy(node))
        if changed is not None:
            self.count += 1
            if self.count - 1 == self.number:
                self.found = (getattr(node, "lineno", 0), ast.unparse(node), ast.unparse(changed))
                return ast.copy_location(changed, node)
        return self.generic_visit(node)


def mutants(modules: list[str]) -> Iterator[Mutant]:
    """Yield all mutants of some modules, those of metrics excluded."""
    for module in modules:
        text = (SOURCE / f"{module}.py").read_text()
        for name, operator in OPERATORS.items():
            for number in range(10_000):
                replace = _Replace(operator, number)
                tree = replace.visit(ast.parse(text))
                if replace.found is None:
                    break
                line, before, after = replace.found
                code = text.splitlines()[line - 1]
                if before == after or code.lstrip().startswith('"') or "class " in code:
                    continue
                yield Mutant(module, line, name, before, after, ast.fix_missing_locations(tree))


def make_config(agent: str) -> "Config":
    """Return the config of a mutant's agent, with settings that reach most of its code."""
    from sebulba.config import ActorConfig, Config, EnvConfig, LearnerConfig

    suite, id = ("jax", "ContinuousBandit-v0" if agent == "sac" else "Recall-v0")
    return Config(
        env=EnvConfig(suite=suite, id=id),
        actor=ActorConfig(num_envs=4, trajectory_length=8, threads_per_device=2),
        learner=LearnerConfig(trajectories_per_cycle=2),
        agent=_make_settings(agent),
    )


def _make_settings(agent: str) -> Any:
    from tests.check.test_faults import AGENTS

    settings = AGENTS[agent if agent in AGENTS else agent.split()[-1]]
    return dataclasses.replace(settings, **_SETTINGS.get(agent, {}))


def examine_all(
    every: list[Mutant],
    results: pathlib.Path | None,
    again: Collection[str] = (),
    *,
    all_questions: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each mutant; those in the file of results are taken from it.

    Args:
        every: the mutants.
        results: JSON; None: no file.
        again: outcomes in the file that are examined once more.
        all_questions: ask every question of each mutant; else until one finds it.
    """
    known = json.loads(results.read_text()) if results is not None and results.exists() else []
    rows = {_key(row): row for row in known}
    originals: dict[str, Any] = {}
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.check_output(command, cwd=ROOT, text=True).strip()
    for each in every:
        row = dataclasses.asdict(each)
        del row["tree"]
        key = _key(row)
        if key not in rows or rows[key]["kind"] in again:
            rows[key] = row | {"commit": commit} | _examine(each, originals, all_questions)
            if results is not None:
                text = json.dumps([*rows.values()], indent=1, ensure_ascii=False)
                results.write_text(text + "\n")
        yield rows[key]


def _examine(mutant: Mutant, originals: dict[str, Any], all_questions: bool) -> dict[str, Any]:
    from tests.check import mutation

    start = time.process_time()
    outcomes = []
    for agent in AGENTS_OF[mutant.module]:
        if agent not in originals:
            originals[agent] = mutation.original(make_config(agent))
        with mutation.mutated(f"sebulba_agents.{mutant.module}", mutant.tree):
            outcome = dataclasses.asdict(mutation.examine(originals[agent], every=all_questions))
        if outcome["kind"] == "missed" or outcome["detail"] == mutation.SAME_RUN:
            # A short run is no proof.
            is_known = (mutant.module, mutant.before) in EQUIVALENT
            outcome["kind"] = "equivalent" if is_known else "missed"
        outcomes.append(outcome | {"agent": agent})
        if outcome["kind"] in ("found", "broken"):
            break
    # The last one decided, unless it computes the same and one before it does not.
    decisive = [each for each in outcomes if each["kind"] != "equivalent"] or outcomes
    return decisive[-1] | {"cpu_seconds": round(time.process_time() - start, 1)}


def _key(row: dict[str, Any]) -> tuple:
    return tuple(row[name] for name in ("module", "line", "operator", "before", "after"))


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the documentation, of mutants that do not raise at once."""
    rows = [row for row in rows if row["kind"] != "broken"]
    lines = ["| place | mutation | expression | outcome |", "|---|---|---|---|"]
    for row in rows:
        changed = f"`{row['before']}` → `{row['after']}`".replace("|", "\\|")
        outcome = {
            "found": f"found by `{row['check']}`",
            "equivalent": f"equivalent: {reason(row)}",
            "missed": f"**not found**: {reason(row)}",
        }[row["kind"]]
        lines.append(
            f"| {row['module']}.py:{row['line']} | {row['operator']} | {changed} | {outcome} |"
        )
    counts = collections.Counter(row["kind"] for row in rows)
    commits: dict[str, dict[str, None]] = {}  # and their modules, in order
    for row in rows:
        commits.setdefault(row["commit"], {})[row["module"]] = None
    places = [f"{commit} ({', '.join(modules)})" for commit, modules in commits.items()]
    share = counts["found"] / max(counts["found"] + counts["missed"], 1)
    summary = (
        f"{len(rows)} mutants: {counts['equivalent']} equivalent, {counts['found']} found,"
        f" {counts['missed']} not found ({share:.0%} of those that change something are found)."
        f" Examined at these commits: {'; '.join(places)}.\n\n"
    )
    return summary + "\n".join(lines) + "\n"


def reason(row: dict[str, Any]) -> str:
    """Return why a mutant is equivalent, or is not found."""
    place = row["module"], row["before"]
    return EQUIVALENT.get(place) or REASONS.get(place) or row["detail"] or "no question sees it"


def _set_up_jax() -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    # Mutants share most compiled functions, and the rest runs only a few times.
    jax.config.update("jax_compilation_cache_dir", str(CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_disable_most_optimizations", True)


def main() -> None:
    """List mutants, or examine them, print a line for each, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sample", type=int, help="examine so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(AGENTS_OF), help="modules")
    parser.add_argument("--lines", nargs="+", type=int, help="of the modules")
    parser.add_argument("--results", type=pathlib.Path, help="JSON, to continue from and to")
    parser.add_argument("--again", nargs="+", default=(), help="outcomes to examine again: missed")
    parser.add_argument("--every", action="store_true", help="ask every question of each mutant")
    parser.add_argument("--table", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    every = [
        each for each in mutants(options.only) if not options.lines or each.line in options.lines
    ]
    if options.sample is not None:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    if options.list:
        for each in every:
            print(f"{each.module}.py:{each.line} {each.operator}: {each.before} → {each.after}")
        return
    _set_up_jax()
    rows = []
    for row in examine_all(every, options.results, options.again, all_questions=options.every):
        rows.append(row)
        print(row["kind"], row["check"], f"{row['module']}.py:{row['line']}", row["operator"])
        print("   ", row["before"], "→", row["after"], f"({row['cpu_seconds']} s)")
        sys.stdout.flush()
    counts = collections.Counter(row["kind"] for row in rows)
    print(dict(counts), f"{sum(row['cpu_seconds'] for row in rows):.0f} s of CPU time")
    if options.table:
        before, _, rest = TABLE.read_text().partition(_BEGIN)
        after = rest.partition(_END)[2]
        TABLE.write_text(f"{before.rstrip()}\n\n{_BEGIN}{make_table(rows)}{_END}{after}")


if __name__ == "__main__":
    main()
