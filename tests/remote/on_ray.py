"""Runs with remote actors on a real Ray, and what is left of them."""

import contextlib
import json
import pathlib
import subprocess
import uuid

from tests.subprocesses import ROOT, environment, run_python, started

MARK = "SEBULBA_TEST_RUN"


def processes_with(mark):
    """Returns `{pid: command line}` of the processes that inherited an environment variable."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and f"{MARK}={mark}".encode() in (
                (folder / "environ").read_bytes()
            ):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode()
    return found


def actors_of(mark):
    return [pid for pid, line in processes_with(mark).items() if "ActingProcess" in line]


def arguments(config, directory, *flags):
    defaults = {"--run.stop-at-return": "null", "--checkpoint.interval-s": "null"}
    given = [pair for pair in defaults.items() if pair[0] not in flags]
    flags = (*(each for pair in given for each in pair), *flags)
    return "-m", "sebulba.train", config, "--run-dir", directory, *flags


def variables_with(mark, **others):
    paths = f"{ROOT}:{ROOT / 'agents'}"
    return environment(**{MARK: mark, "PYTHONPATH": paths, **others})


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


def crc_of_threads(config, directory, *flags):
    done = run_python(*arguments(config, directory, *flags))
    assert done.returncode == 0, done.stderr
    return summary_of(directory)["networks_crc32"]


def check_ledger(summary):
    for account in summary["ledger"]:
        assert account["acted"] == account["learned"] + account["discarded"]
    assert sum(each["learned"] for each in summary["ledger"]) == summary["env_steps"]


class Cluster:
    """Nodes, and a head without CPUs."""

    def __init__(self, process, mark):
        self._process = process
        self.mark = mark  # of all its processes, those of actors included
        self.address = process.stdout.readline().strip()

    def add(self):
        """Add a node."""
        self._tell("add")

    def kill(self, number):
        """End a node with all its processes, as if its machine were gone."""
        self._tell(f"kill {number}")

    def _tell(self, command):
        print(command, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline()


@contextlib.contextmanager
def cluster(num_nodes=1, cpus_of_each=1):
    """Starts a Ray cluster, for use in a `with`; yields a `Cluster`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    mark = uuid.uuid4().hex
    command = ("-m", "tests.hosts.ray_cluster", num_nodes, cpus_of_each)
    with started(*command, variables=variables_with(mark), **pipes) as process:
        yield Cluster(process, mark)
        process.stdin.close()
        process.wait(60)


@contextlib.contextmanager
def training(config, directory, *flags, mark, **variables):
    """Trains with remote actors, for use in a `with`; yields the process and its output's file."""
    directory.parent.mkdir(exist_ok=True)
    output = directory.parent / "output"
    own = variables_with(mark, PYTHONUNBUFFERED="1", **variables)
    with output.open("w") as file:
        pipes = {"stdout": file, "stderr": file}
        command = arguments(config, directory, *flags)
        with started(*command, variables=own, **pipes) as process:
            yield process, output


def rows_of(directory):
    """Return the complete rows of metrics so far."""
    metrics = directory / "metrics.jsonl"
    text = metrics.read_text() if metrics.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def checkpoints_of(directory):
    """Return the learner cycles of the complete checkpoints so far."""
    names = [path.name for path in directory.glob("checkpoints/*")]
    return sorted(int(name) for name in names if name.isdecimal())
