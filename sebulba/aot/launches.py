"""What a host starts on an accelerator: kernels and synchronisations, counted in a program's text.

A small network's env step or update costs its launches: about 2 to 3 µs for each kernel on a GPU,
however little it computes. A predicate that the host decides on empties the queue of the device.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

from sebulba.ring.act_cycle import ENV_STEP_SCOPE
from sebulba.ring.update import UPDATE_SCOPE

# Instructions that only name what is there already, or the end of what another one starts.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("add-dependency", "opt-barrier", "domain", "partition-id", "replica-id"),
}
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (?P<rest>.*)$")
_OPCODE = re.compile(r"([\w-]+)\(")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SCOPE = re.compile(rf'op_name="[^"]*?/({ENV_STEP_SCOPE}|{UPDATE_SCOPE})[/"]')
_BRANCHES = re.compile(
    r"(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.-]+))"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launches:
    """Kernels and synchronisations of one call of a program.

    A loop counts as often as it turns; as one turn if its length is not known. A conditional counts
    as its largest branch.
    """

    kernels: int
    in_env_steps: int  # of the kernels, those in the scope `ENV_STEP_SCOPE`
    in_updates: int  # of the kernels, those in the scope `UPDATE_SCOPE`
    synchronisations: int  # numbers that the host waits for: predicates of conditionals and loops


class _Instruction(NamedTuple):
    opcode: str
    line: str
    scope: str | None


def count_launches(hlo: str) -> Launches:
    """Count what one call of a compiled program launches.

    Args:
        hlo: as `jax.stages.Compiled.as_text` returns it. Its fusions are kernels of a GPU; those of
            a TPU are no launches of the host, but the more there are, the more each costs.
    """
    entry, computations = _read(hlo)
    scopes: collections.Counter[str | None] = collections.Counter()
    synchronisations = 0
    for instruction, scope, times in _walk(computations, entry, None, 1):
        if instruction.opcode in ("while", "conditional"):
            synchronisations += times
        else:
            scopes[scope] += times
    return Launches(
        kernels=scopes.total(),
        in_env_steps=scopes[ENV_STEP_SCOPE],
        in_updates=scopes[UPDATE_SCOPE],
        synchronisations=synchronisations,
    )


def _read(hlo: str) -> tuple[str, dict[str, list[_Instruction]]]:
    """Return the name of a program's entry, and the instructions of each of its computations."""
    computations: dict[str, list[_Instruction]] = collections.defaultdict(list)
    entry = name = ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            name = header["name"]
            entry = name if header["entry"] else entry
        elif match := _INSTRUCTION.match(line):
            opcode = _OPCODE.match(_without_type(match["rest"]))
            scope = _SCOPE.search(line)
            if opcode is not None:
                computations[name].append(
                    _Instruction(opcode[1], line, None if scope is None else scope[1])
                )
    return entry, computations


def _without_type(text: str) -> str:
    """Return what follows the type of an instruction: a word, or a tuple in parentheses."""
    if not text.startswith("("):
        return text.partition(" ")[2]
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[end + 1 :].lstrip()
    return ""


def _walk(
    computations: dict[str, list[_Instruction]], name: str, outer: str | None, times: int
) -> Iterator[tuple[_Instruction, str | None, int]]:
    """Yield what a computation launches, with its scope and how often it does.

    Loops of unknown length and conditionals are yielded before what they contain.
    """
    # What the compiler adds to a loop, such as copies, has no scope: that of most others there.
    named = collections.Counter(each.scope for each in computations[name] if "op_name" in each.line)
    common = named.most_common(1)[0][0] if named else None
    for instruction in computations[name]:
        opcode, line, own = instruction
        scope = outer or own or (None if "op_name" in line else common)
        if opcode in _FREE or opcode.endswith("-done"):
            continue
        if opcode == "while":
            turns = _TURNS.search(line)
            if turns is None:
                yield instruction, scope, times
            (body,) = re.findall(r"body=%?([\w.-]+)", line)
            inner = times * (1 if turns is None else int(turns[1]))
            yield from _walk(computations, body, outer or own, inner)
        elif opcode == "conditional":
            yield instruction, scope, times
            branches = [
                list(_walk(computations, branch.strip(" %"), scope, times))
                for match in _BRANCHES.findall(line)
                for branch in "".join(match).split(",")
            ]
            yield from max(branches, key=len)
        elif opcode == "call":
            (called,) = re.findall(r"to_apply=%?([\w.-]+)", line)
            yield from _walk(computations, called, outer or own, times)
        else:
            yield instruction, scope, times
