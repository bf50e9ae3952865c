"""Run the tests with the oldest and the newest packages, and write the table in `docs/versions.md`.

    python -m benchmarks.versions --keep DIRECTORY [--oldest PYTHON] [--newest PYTHON] [TESTS ...]

Each set of packages gets an environment of its own in DIRECTORY, which `uv` makes for the
interpreter PYTHON: the oldest has the least version of every dependency that `pyproject.toml`
allows, the newest has the newest. Each of TESTS, a folder or a file, runs in a process of its own,
whose results stay in DIRECTORY, and does not run again; `PYTEST_ADDOPTS` has options for pytest.
Without an interpreter, the table is written from the results alone.
"""

import argparse
import collections
import datetime
import json
import pathlib
import subprocess
import xml.etree.ElementTree
from collections.abc import Iterable, Mapping
from typing import Any

_ROOT = pathlib.Path(__file__).parent.parent
_PAGE = _ROOT / "docs" / "versions.md"
_BEGIN, _END = "<!-- table of versions -->", "<!-- end of the table of versions -->"
_SHOWN = ("jax", "jaxlib", "flax", "optax", "chex", "numpy", "gymnasium", "envpool", "mctx")


def main() -> None:
    """Make the environments, run the tests, and write their table into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("tests", nargs="*", default=["tests"], metavar="TESTS")
    parser.add_argument("--oldest", metavar="PYTHON")
    parser.add_argument("--newest", metavar="PYTHON")
    parser.add_argument("--keep", type=pathlib.Path, required=True, metavar="DIRECTORY")
    options = parser.parse_args()
    columns = {}
    for name, interpreter, resolution in (
        ("oldest", options.oldest, "lowest-direct"),
        ("newest", options.newest, "highest"),
    ):
        directory = options.keep.resolve() / name
        if interpreter is not None:
            if not (directory / "versions.json").exists():
                install(directory, interpreter, resolution=resolution)
            for tests in options.tests:
                run_tests(directory, tests)
        if (directory / "versions.json").exists():
            versions = json.loads((directory / "versions.json").read_text())
            results = sorted(directory.glob("*.xml"))
            ran = ", ".join(path.stem for path in results)
            columns[name] = versions | {"tests": ran} | count_outcomes(results)
    text = table(columns)
    _PAGE.write_text(with_table(_PAGE.read_text(), text))
    print(text)


def install(directory: pathlib.Path, interpreter: str, *, resolution: str) -> None:
    """Make an environment in `directory`, and write the versions of its packages there."""
    environment = directory / "venv"
    _output("uv", "venv", "--quiet", "--python", interpreter, environment)
    install = ("uv", "pip", "install", "--quiet", "--resolution", resolution)
    _output(*install, "--python", environment, "--editable", f"{_ROOT}[dev]")
    python = ("-c", "import platform; print(platform.python_version())")
    versions = {"Python": _output(environment / "bin" / "python", *python)}
    listed = _output("uv", "pip", "list", "--format", "json", "--python", environment)
    found = {each["name"]: each["version"] for each in json.loads(listed)}
    versions |= {name: found[name] for name in _SHOWN}
    (directory / "versions.json").write_text(json.dumps(versions))


def run_tests(directory: pathlib.Path, tests: str) -> None:
    """Run a folder or a file of tests in an environment, unless its results are there."""
    results = directory / f"{tests.strip('/').replace('/', '.')}.xml"
    if not results.exists():
        python = str(directory / "venv" / "bin" / "python")
        command = [python, "-m", "pytest", tests, f"--junitxml={results}"]
        subprocess.run(command, cwd=_ROOT, check=False)  # Failures are in the results.


def count_outcomes(results: Iterable[pathlib.Path]) -> dict[str, str]:
    """Return how many tests passed, were skipped and failed; one in several files counts once."""
    outcomes = {}
    for path in sorted(results, key=lambda path: path.stat().st_mtime):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = (
                "failed"
                if kinds & {"failure", "error"}
                else "skipped"
                if "skipped" in kinds
                else "passed"
            )
            outcomes[case.get("classname"), case.get("name")] = outcome
    counts = collections.Counter(outcomes.values())
    return {name: f"{counts[name]:,}" for name in ("passed", "skipped", "failed")}


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return the Markdown table of the columns, by name, with a line of the date and commit."""
    rows = list(next(iter(columns.values())))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {row} | " + " | ".join(each[row] for each in columns.values()) + " |" for row in rows
    ]
    commit = _output("git", "-C", _ROOT, "rev-parse", "--short", "HEAD")
    return "\n".join([*lines, "", f"Written on {datetime.date.today()}, at commit `{commit}`."])


def with_table(page: str, text: str) -> str:
    """Return the page with another table between its markers."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}"


def _output(*command: Any) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    main()
