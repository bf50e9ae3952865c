"""Mutate the shipped agents' source, and see whether the check finds each mutant.

    python -m tests.tools.check.mutants [--list] [--sample N] [--only MODULE …]

Each mutant runs in a process of its own, with a copy of `agents/` in which one expression differs.
A mutant is *equivalent* if the losses, gradients, updated parameters and actions of a short run are
bitwise those of the original; *found* if a check fails; *missed* otherwise.
"""

import argparse
import ast
import collections
import copy
import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[3]
SOURCE = ROOT / "agents" / "sebulba_agents"
# The agent, of `test_faults.AGENTS`, that runs a module's code.
AGENT_OF = {
    "impala": "impala",
    "actor_critic": "impala",
    "ppo": "ppo",
    "ddqn": "ddqn",
    "q_learning": "r2d2",
    "r2d2": "r2d2",
    "sac": "sac",
}
_REDUCTIONS = ("masked_mean", "masked_sum", "masked_moments", "reduce")
_SWAPS = {"online": "target", "target": "online", "terminated": "truncated"}
_MARK = "fingerprint: "


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One changed expression of a module."""

    module: str
    line: int
    operator: str
    before: str
    after: str
    source: str = dataclasses.field(repr=False)


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
                source = ast.unparse(ast.fix_missing_locations(tree))
                yield Mutant(module, line, name, before, after, source)


def run(mutant: Mutant | None, agent: str) -> tuple[str, list[str]]:
    """Check a mutant in a process; return its fingerprint and the failures."""
    with tempfile.TemporaryDirectory() as path:
        agents = pathlib.Path(path) / "agents"
        shutil.copytree(SOURCE.parent, agents)
        if mutant is not None:
            (agents / "sebulba_agents" / f"{mutant.module}.py").write_text(mutant.source)
        result = subprocess.run(
            [sys.executable, "-m", "tests.tools.check.mutants", "--agent", agent],
            env={**os.environ, "PYTHONPATH": f"{agents}:{ROOT}"},
            cwd=path,
            capture_output=True,
            text=True,
        )
    lines = result.stdout.splitlines()
    fingerprint = next((line for line in lines if line.startswith(_MARK)), "none")
    failed = [line.removeprefix("✗ ") for line in lines if line.startswith("✗ ")]
    if result.returncode and not failed:
        failed = [f"raised: {result.stderr.splitlines()[-1]}"]
    return fingerprint, failed


def check_agent(name: str) -> None:
    """Print the failures of an agent, and the fingerprint of what it computes."""
    import hashlib

    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    from sebulba.tools.check.recording import record
    from sebulba.tools.check.result import as_numpy
    from sebulba.tools.check.subject import assemble_subject
    from sebulba.tools.check.suite import check
    from tests.tools.check.test_faults import AGENTS, config_of

    config = config_of(AGENTS[name])
    for result in check(config).results:
        if result.status == "fail":
            print(f"✗ {result.name}")
    subject = assemble_subject(config)
    recording = record(subject)
    acted = [(each.trajectory.action, each.trajectory.extras) for each in recording.trajectories]
    learned = as_numpy(subject.ring.learner.state.opt_state)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((acted, recording.networks, learned)):
        digest.update(leaf.tobytes())
    subject.ring.close_environments()
    print(_MARK + digest.hexdigest())


def main() -> None:
    """List mutants, or run them and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(AGENT_OF))
    parser.add_argument("--agent")
    options = parser.parse_args()
    if options.agent is not None:
        check_agent(options.agent)
        return
    every = list(mutants(options.only))
    if options.sample is not None:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    originals: dict[str, str] = {}
    counts: collections.Counter[str] = collections.Counter()
    for each in every:
        agent = AGENT_OF[each.module]
        outcome, failed = "listed", []
        if not options.list:
            if agent not in originals:
                originals[agent], failed = run(None, agent)
                assert not failed, (agent, failed)
            fingerprint, failed = run(each, agent)
            is_same = fingerprint == originals[agent]
            outcome = "found" if failed else "equivalent" if is_same else "missed"
        counts[outcome] += 1
        place = f"{each.module}.py:{each.line}"
        why = f" | {failed[0]}" if failed else ""
        print(f"| {outcome} | {place} | {each.operator} | `{each.before}` → `{each.after}`{why} |")
        sys.stdout.flush()
    print(dict(counts))


if __name__ == "__main__":
    main()
