"""Run a part of the slow tests, such that ten landings run them all: `python -m tests.slow_part`.

`.ci/run` calls it at each landing. It starts from a fresh clone, so it knows nothing but the
history, and landings have no mark there. Between two of them there is a pause, while the first is
tested and the next is written. So the commits are divided into *sittings*: a commit that comes more
than half an hour after the one before it begins the next sitting. (The number of commits would be
worse: landings have 1 to 80 of them.)

A slow test belongs to one of ten parts. Sitting `n` runs the parts `n`, `n - 1` and `n - 2`, modulo
10, the newest first. A landing of one to three sittings thus leaves out no part, and ten landings
have at least ten sittings. Slow tests that belong to files changed in these three sittings run too.

`--last` prints when each test was due the last time. This file is also the pytest plugin that makes
the selection; `test_slow_part.py` tests it.
"""

import argparse
import collections
import datetime
import os
import pathlib
import re
import subprocess
import sys
import time
import zlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NUM_PARTS = 10
NUM_AT_ONCE = 3
PAUSE_S = 30 * 60
BUDGET_S = 25 * 60
CHANGED_SHARE = 0.4  # of the time, for tests that run only because a file has changed
NUM_TOGETHER = 12  # tests of a file that are in the same part, since they may share a run
NUM_PROCESSES = 2
_UNTIL = "SEBULBA_SLOW_UNTIL"
_BUDGET = "SEBULBA_SLOW_BUDGET"
_LEFT = "left for another landing"


def commits():
    """Return (hash, committer's time in s) of each commit, the oldest first; none without git."""
    lines = _git("log", "--first-parent", "--reverse", "--format=%H %ct").splitlines()
    return [(name, int(time)) for name, time in map(str.split, lines)]


def sittings(history):
    """Return the commits of each sitting, the oldest first."""
    groups = []
    for before, commit in zip([None, *history], history, strict=False):
        if before is None or commit[1] - before[1] > PAUSE_S:
            groups.append([])
        groups[-1].append(commit)
    return groups


def parts_of(sitting):
    """Return the parts that a landing in this sitting runs, the first to run first."""
    return [(sitting - age) % NUM_PARTS for age in range(NUM_AT_ONCE)]


def part_of_each(names):
    """Return the part of each test, by its name; `names` are those of all slow tests, in order."""
    count, parts = collections.Counter(), {}
    for name in names:
        file = name.partition("::")[0]
        # Large files are spread over all parts. A new file moves no other one to another part.
        parts[name] = (zlib.crc32(file.encode()) + count[file] // NUM_TOGETHER) % NUM_PARTS
        count[file] += 1
    return parts


def changed_files(groups):
    """Return the files that changed in the last sittings, as paths from the root."""
    before = groups[: -NUM_AT_ONCE or None]
    if not before:
        return []
    return _git("diff", "--name-only", before[-1][-1][0], "HEAD").splitlines()


def belongs(name, path):
    """Return whether a test belongs to a file, by its place or because its name has the file's."""
    if path.endswith(".md"):
        return path in name
    if path.startswith("configs/"):
        return re.search(rf"\[.*\b{re.escape(pathlib.Path(path).stem)}\b", name) is not None
    room, _, rest = path.partition("/")
    if not path.endswith(".py") or not rest:
        return False
    folder, _, stem = rest.removeprefix("sebulba_agents/").removesuffix(".py").rpartition("/")
    if room == "tests":
        return name.startswith(f"{path}::")
    folder = "/".join(filter(None, (room if room in ("agents", "benchmarks") else "", folder)))
    return (
        re.match(rf"tests/{folder and folder + '/'}test_{re.escape(stem)}(_\w+)?\.py::", name)
        is not None
    )


def select(names, sitting, changed):
    """Return the tests to run in their order, each with whether its part is due.

    Args:
        names: the names of all slow tests.
        sitting: the number of the sitting.
        changed: the files that have changed.
    """
    parts = part_of_each(names)
    due = [name for part in parts_of(sitting) for name in names if parts[name] == part]
    known = set(due)
    files = [path for path in changed if path.endswith((".py", ".md", ".yaml"))]
    others = [n for n in names if n not in known and any(belongs(n, path) for path in files)]
    return {**dict.fromkeys(others, False), **dict.fromkeys(due, True)}


def is_over(is_due, *, now, until, budget):
    """Return whether the time of a test is over before it begins."""
    return now > (until if is_due else until - (1 - CHANGED_SHARE) * budget)


# The plugin, in each of pytest's processes.


def pytest_collection_modifyitems(config, items):
    """Select the tests, and bring them into their order."""
    slow = {item.nodeid: item for item in items if item.get_closest_marker("slow")}
    groups = sittings(commits())
    selected = select(list(slow), len(groups), changed_files(groups))
    config.hook.pytest_deselected(items=[x for x in items if x.nodeid not in selected])
    for name, is_due in selected.items():
        slow[name].is_due = is_due
    items[:] = [slow[name] for name in selected]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Begin no test after the time is over."""
    until, budget = float(os.environ[_UNTIL]), float(os.environ[_BUDGET])
    if is_over(item.is_due, now=time.time(), until=until, budget=budget):
        pytest.skip(_LEFT)


def pytest_terminal_summary(terminalreporter):
    """Say which part ran, and which tests of it did not."""
    number = len(sittings(commits()))
    write = terminalreporter.write_line
    write(f"slow tests of sitting {number}: parts {', '.join(map(str, parts_of(number)))} of 10")
    skipped = terminalreporter.stats.get("skipped", [])
    left = [each.nodeid for each in skipped if _LEFT in str(each.longrepr)]
    files = collections.Counter(name.partition("::")[0] for name in left)
    for file, count in files.items():
        write(f"{_LEFT}, since the time was over: {count} of {file}")


# The command.


def main():
    """Parse the command line; run the tests, or print when each was due."""
    parser = argparse.ArgumentParser(prog="python -m tests.slow_part", description=__doc__)
    parser.add_argument("--last", action="store_true", help="print when each test was due")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="default: 1500")
    options, arguments = parser.parse_known_args()
    if options.last:
        return print_last()
    os.environ |= {_UNTIL: str(time.time() + options.budget_s), _BUDGET: str(options.budget_s)}
    flags = ["-m", "slow", "-p", "tests.slow_part", "-n", str(NUM_PROCESSES)]
    # In the given order, and neighbours in one process.
    flags += ["--dist", "load", "--maxschedchunk", str(NUM_TOGETHER)]
    return subprocess.run([sys.executable, "-m", "pytest", *flags, *arguments], cwd=ROOT).returncode


def print_last():
    """Print when each slow test was due the last time, and when it will be due again."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "--collect-only", "-n", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    groups, parts = sittings(commits()), part_of_each(names)
    number = len(groups)
    for part in range(NUM_PARTS):
        ago = next(age for age in range(NUM_PARTS) if part in parts_of(number - age))
        again = next(more for more in range(1, 2 * NUM_PARTS) if part in parts_of(number + more))
        when = "before the first commit"
        if ago < number:
            commit, seconds = groups[number - ago - 1][-1]
            day = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
            when = f"sitting {number - ago}, up to {commit[:7]} of {day:%Y-%m-%d %H:%M} UTC"
        files = collections.Counter(n.partition("::")[0] for n in names if parts[n] == part)
        print(f"part {part}: due the last time in {when}; again in sitting {number + again}")
        for file, count in files.items():
            print(f"    {count:3} of {file}")
    print(f"{len(names)} slow tests in {NUM_PARTS} parts")
    return 0 if names else done.returncode or 1


def _git(*arguments):
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
