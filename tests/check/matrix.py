"""Ask every question about every planted fault, and write the matrix into the documentation.

    python -m tests.check.matrix [--only PART …] [--list] [--results FILE] [--table]

The faults are those of `test_faults.FAULTS`, on the first agent each, and the environments of
`faulty_environments`. A question that finds no fault alone has to say in `KEPT` why it stays. Runs
with the same `--results FILE` add up.
"""

import argparse
import json
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from sebulba.config import Config

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "docs" / "check_matrix.md"
FAULTS = "<!-- faults -->\n", "<!-- end of faults -->\n"
RECORDS = "<!-- records -->\n", "<!-- end of records -->\n"
QUESTIONS = "<!-- questions -->\n", "<!-- end of questions -->\n"
_SEED = 1

KEPT: dict[str, str] = {
    "lengths": "it answers with a ? on purpose: it finds `ForgetsItsFlag`, and no other does",
    "protocol": "all others need it: `WithoutClock` of the tests fails it, and ends the check",
    "pipeline": "all others need it: an agent that ignores masks fails it with a loss of NaN",
    "rows": "it asks the ring, not the agent, and so whether other questions see true rows",
    "rewards": "it names the row, where `episodes` sees a mixture of episodes",
    "termination": "it names the row, where `truncation` sees that two flags are one",
    "masks": "it changes actions and extras, which `episodes` does not",
    "episodes": "it asks of every term of a loss, where the others name those they know",
    "splitting": "it names the leaf in a second, where `devices` compiles two updates",
    "unrolls": "it finds mutants of the shipped cores that learn otherwise than they act",
    "actor-keys": "it names the actors, where `log-probs` sees frequencies",
    "donation": "it asks compiled buffers, which no result shows; the tests plant a kept one",
    "symmetry": "it finds seven mutants alone",
    "players": "it needs several players, which the faults of this table have not: its own tests",
    "policy-observation": "it needs a part for critics alone, and has its own tests",
    "devices": "it asks replays too, which `padding` does not",
}
"""Why a question stays that finds no planted fault alone."""


def faults() -> list[str]:
    """Return the names of all faults: `fault on agent`, or `environment: name`."""
    from tests.check import test_faults, test_own_environment

    pairs = [getattr(each, "values", each) for each in test_faults.FAULTS]
    first: dict[tuple[str, str], str] = {}  # agent, by fault and by the question that is meant
    for fault, agent, question in pairs:
        first.setdefault((fault, question), agent)
    agents = dict.fromkeys(f"{fault} on {agent}" for (fault, _), agent in first.items())
    of_environments = (name for name, *_ in test_own_environment.FAULTS if name != "Bandit")
    return [*agents, *(f"environment: {name}" for name in of_environments)]


def make_config(name: str) -> "Config":
    """Return the config of a fault."""
    from tests.check import test_faults
    from tests.check.test_own_environment import config_with

    if name.startswith("environment: "):
        return config_with(name.partition(": ")[2])
    pairs = [getattr(each, "values", each) for each in test_faults.FAULTS]
    fault, agent, question = next(pair for pair in pairs if f"{pair[0]} on {pair[1]}" == name)
    return test_faults.fault_config(fault, agent, question, _SEED)


def questions_that_find(name: str) -> dict[str, list[str]]:
    """Return the names of the questions with a ✗ and with a ? about a fault."""
    from sebulba.check.suite import check, environment_results

    config = make_config(name)
    if name.startswith("environment: "):
        results = tuple(environment_results(config))  # the agent is a sound one, on the probe
    else:
        results = check(config).results
    jax.clear_caches()  # of functions that no other agent has
    return {
        status: [each.name for each in results if each.status == status]
        for status in ("fail", "unclear")
    }


def make_table(rows: dict[str, dict[str, list[str]]]) -> str:
    """Return the table of faults."""
    lines = ["| fault | ✗ | ? |", "|---|---|---|"]
    for name, row in rows.items():
        found, unclear = (", ".join(f"`{each}`" for each in row[key]) for key in row)
        lines.append(f"| {name} | {found} | {unclear} |")
    return "\n".join(lines) + "\n"


def read_table(text: str) -> dict[str, list[str]]:
    """Return the questions that find each fault, from the documentation."""
    rows = [line.split("|")[1:3] for line in section(text, *FAULTS).splitlines()[2:]]
    return {
        name.strip(): [each.strip(" `") for each in found.split(",") if each.strip()]
        for name, found in rows
    }


def make_table_of_questions(found_by: dict[str, list[str]]) -> str:
    """Return the table of questions: how many faults each finds, and which it finds alone.

    Args:
        found_by: the questions that find each fault.
    """
    from sebulba.check.suite import EVERY

    lines = ["| question | finds | alone | why it stays |", "|---|---|---|---|"]
    for question in EVERY:
        found = [name for name, questions in found_by.items() if question in questions]
        alone = [name for name in found if found_by[name] == [question]]
        listed = ", ".join(alone[:3]) + (f" and {len(alone) - 3} more" if alone[3:] else "")
        why = "" if alone else KEPT.get(question, "")
        lines.append(f"| `{question}` | {len(found)} | {listed or '–'} | {why} |")
    return "\n".join(lines) + "\n"


def section(text: str, begin: str, end: str) -> str:
    """Return what is between two marks of a text."""
    return text.partition(begin)[2].partition(end)[0]


def make_table_of_records() -> str:
    """Return the table of what each question changes, expects and takes for a change."""
    from sebulba.check.suite import EVERY

    lines = [
        "| question | changes | proof of the change | must, and must not, change | bound |",
        "|---|---|---|---|---|",
    ]
    for each in EVERY.values():
        cells = each.perturbs, each.proof, each.expects, each.bound
        lines.append(f"| `{each.name}` | {' | '.join(cells)} |".replace("<", "&lt;"))
    return "\n".join(lines) + "\n"


def between(text: str, begin: str, end: str, content: str) -> str:
    """Return a text with other content between two marks."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}{content}{end}{rest.partition(end)[2]}"


def main() -> None:
    """Ask about faults, print a line for each, and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--only", nargs="+", help="those whose names contain one of these")
    parser.add_argument("--results", type=pathlib.Path, help="JSON, to continue from and to")
    parser.add_argument("--table", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    wanted = [
        name for name in faults() if not options.only or any(part in name for part in options.only)
    ]
    if options.list:
        print("\n".join(wanted))
        return
    path = options.results
    rows: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}
    for name in wanted:
        start = time.monotonic()
        if name not in rows:
            rows[name] = questions_that_find(name)
            if path is not None:
                path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        print(f"{time.monotonic() - start:4.0f} s", name, rows[name])
        sys.stdout.flush()
    if options.table:
        rows = {name: rows[name] for name in faults() if name in rows}
        text = between(TABLE.read_text(), *FAULTS, make_table(rows))
        text = between(text, *RECORDS, make_table_of_records())
        questions = make_table_of_questions({name: row["fail"] for name, row in rows.items()})
        TABLE.write_text(between(text, *QUESTIONS, questions))


if __name__ == "__main__":
    # As the tests do: virtual devices, strict promotion, and a quick compiler.
    import tests.conftest  # noqa: F401

    main()
