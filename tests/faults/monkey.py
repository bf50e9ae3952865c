"""Random faults at random moments, and runs that have to survive them.

`python -m tests.faults.monkey [--runs 200] [--seed S] [--hosts 2] [--kind NAME]`

Each run trains, suffers one fault of `tests.faults.monkey_kinds`, and is resumed until it is done,
by the command that its last line prints. Run i has the seed S + i, which repeats it alone.
"""

import argparse
import collections
import contextlib
import csv
import dataclasses
import itertools
import json
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from sebulba.evaluation.stored import load_stored_policy
from sebulba.storage.checkpoints.restore import steps_in
from tests.faults.monkey_kinds import at_once, kinds_on, once_saved
from tests.hosts.processes import HEARTBEAT_S, free_port
from tests.run.resuming import comparable
from tests.subprocesses import environment, started

PROCESS_DEADLINE_S = 90.0  # of a run of 4 s; what takes longer hangs
MAX_STARTS = 4  # of one run, before a restart script would loop
GOAL = 3000
CONFIG = """
env: {env}
devices: {{actor: [0], learner: {learners}}}
actor: {{num_envs: 4, trajectory_length: 5, cycle: stepped}}
learner: {{policy_lag: 0}}
agent: {agent}
checkpoint: {{interval_s: {interval_s}}}
run: {{log_interval_env_steps: 170, total_env_steps: {goal}}}
"""
AGENTS = {
    "toy": ("Catch-v0", "{name: 'tests.faults.monkey_parts:MonkeyAgent', updates_per_cycle: 2}"),
    "impala": ("Recall-v0", "{name: impala, hidden_sizes: [8], lstm_size: 8}"),
    "r2d2": (
        "Recall-v0",
        "{name: r2d2, hidden_sizes: [8], lstm_size: 8, dueling_size: 8, burn_in: 5,"
        " learn_length: 5, batch_size: 8, replay_capacity: 400,"
        " min_replay_rows: 100, replay_ratio: 4.0}",
    ),
}
WORKERS = (
    "{suite: gymnasium, id: 'tests.faults.environments:Faulty-v0',"
    " options: {vectorization_mode: async}}"
)
RESUME_COMMAND = re.compile(r"python -m sebulba\.train (\S.*? --resume \S+)")
COUNTERS = ("env_steps", "updates")
_references = {}


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run: of every host, the exit code and the file of its output."""

    codes: list[int] = dataclasses.field(default_factory=list)
    logs: list[pathlib.Path] = dataclasses.field(default_factory=list)

    def last_lines(self):
        """Return the last line of every host."""
        texts = [log.read_text(errors="replace").strip() for log in self.logs]
        return [text.splitlines()[-1] if text else "" for text in texts]


class Run:
    """A run that is started until it is done."""

    def __init__(self, directory, *, agent, num_hosts, rng, flags=(), workers=False):
        self.rng, self.num_hosts, self.flags = rng, num_hosts, [*flags]
        self.disk = directory / "disk"
        self.disk.mkdir()
        self.path = self.disk / "run"
        self.starts = []
        self.notes = []  # what happened, for the report
        self.had_begun = False  # before the fault, as far as can be seen from outside
        self._directory = directory
        self._count = itertools.count()
        self.config = directory / "config.yaml"
        task, agent = AGENTS[agent]
        env = f"{{suite: 'tests.faults.monkey_parts:make', id: {task}}}"
        text = CONFIG.format(
            env=WORKERS if workers else env,
            agent=agent,
            learners=[0] if num_hosts == 1 else [0, 1],
            interval_s=rng.choice([0, 0.2, 0.5]),
            goal=GOAL * num_hosts,
        )
        self.config.write_text(text)

    def directories(self):
        """Return the directory of every host."""
        return [self.path, *(self.path / f"hosts/{n}" for n in range(1, self.num_hosts))]

    def steps(self):
        """Return the learner cycles of the checkpoints that every host has."""
        steps = [steps_in(path / "checkpoints") for path in self.directories()]
        return sorted(set.intersection(*map(set, steps)))

    def command(self):
        """Return what a user would type now: what the last line says, or else a start."""
        latest = self.starts[-1] if self.starts else None
        if latest and (found := RESUME_COMMAND.search(latest.last_lines()[0])):
            return shlex.split(found[1])
        if latest and (
            4 in latest.codes or "no checkpoint on every host" in latest.last_lines()[0]
        ):
            shutil.rmtree(self.path)  # No checkpoint is whole: start again.
        start = [self.config, "--run-dir", self.path]
        return [*start, "--resume", "latest"] if self.steps() else start

    @contextlib.contextmanager
    def training(self, *, meddle=None, when=None, everyone=False, before=("-m",), output=None):
        """Start a process on every host; at a random moment give one of them, then await the ends.

        Args:
            meddle: what goes wrong by itself, on one host; see `monkey_parts`.
            when: waits for the moment, given the run, the process and its host's directory.
            everyone: give a list of all processes.
            before: arguments of Python before the command.
            output: of the processes, instead of a file.
        """
        number = self.rng.randrange(self.num_hosts)
        command = [*self.command(), *self.flags]
        port, start, processes = free_port(), Start(), []
        self.starts.append(start)
        self.notes.append(f"$ {shlex.join(map(str, command))}")
        with contextlib.ExitStack() as stack:
            for host in range(self.num_hosts):
                start.logs.append(self._directory / f"stderr-{next(self._count)}")
                file = stack.enter_context(start.logs[-1].open("w"))
                variables = {"MONKEY": meddle} if meddle and host == number else {}
                variables |= {"JAX_NUM_CPU_DEVICES": "2", "PYTHONFAULTHANDLER": "1"}
                process = started(
                    *(*before, "sebulba.train", *command, *self._flags_of_host(host, port)),
                    variables=environment(**variables),
                    stdout=output or file,
                    stderr=output or file,
                )
                processes.append(stack.enter_context(process))
            if when is not None:
                when(self, processes[number], self.directories()[number])
            elif meddle is None:
                self.wait_for_the_moment(processes, self.directories()[number])
            self.had_begun = meddle is not None or self.has_rows()
            self.notes.append(f"host {number}, {self.describe()}")
            yield processes if everyone else processes[number]
            start.codes.extend(self._end_of(process) for process in processes)
            self.notes.append(f"ended with {start.codes}, {self.describe()}")

    def wait_for_the_moment(self, processes, directory):
        """Sleep until the fault is due: during the start now and then, mostly once it has saved."""
        if self.num_hosts == 1 and self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0.0, 2.5))
        elif self.rng.random() < 0.2:
            while all(process.poll() is None for process in processes) and not self.has_rows():
                time.sleep(0.01)
        else:
            once_saved(self, processes[0], directory)

    def has_rows(self):
        """Whether it trains."""
        return (self.path / "metrics.jsonl").exists()

    def describe(self):
        """Return how far the run is."""
        return f"cycles {self.steps()}" if self.path.is_dir() else "no run directory"

    def resume_until_done(self, *, may_refuse):
        """Resume without a fault; `may_refuse`: with exit code 4, once, naming what can be used."""
        while any(self.starts[-1].codes):
            assert len(self.starts) <= MAX_STARTS, "its last lines lead to no end"
            with self.training(when=at_once):
                pass
            allowed = {0, 4} if may_refuse else {0}
            codes = self.starts[-1].codes
            assert set(codes) <= allowed, f"resuming ended with {codes}"

    def assert_done(self):
        """Assert that what the exit code 0 says is true, of every host's directory."""
        for path in self.directories():
            summary = json.loads((path / "summary.json").read_text())
            assert summary["status"] == "done"
            steps = steps_in(path / "checkpoints")
            assert steps[-1:] == [summary["learner_cycles"]], f"done, but saved is {steps}"
            assert summary["env_steps"] >= GOAL * self.num_hosts
            for account in summary["ledger"]:
                acted = account.pop("acted")
                assert acted == sum(account.values()), f"ledger: {acted} acted, {account}"
        policy = load_stored_policy(self.path, "latest")
        assert policy.learner_cycle == summary["learner_cycles"]
        assert (policy.env_steps, policy.updates) == (summary["env_steps"], summary["updates"])
        with (self.path / "metrics.csv").open(newline="") as file:
            table = [{key: float(row[key]) for key in COUNTERS} for row in csv.DictReader(file)]
        for rows in (self.rows(), table):
            for key in COUNTERS:
                values = [row[key] for row in rows]
                assert values == sorted(set(values)), f"{key} went back or stood still: {values}"
            # There may be none: a full disk.
            assert not rows or rows[-1]["env_steps"] <= summary["env_steps"]
        return summary

    def rows(self):
        """Return the rows of metrics; each line has to be one."""
        lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _flags_of_host(self, host, port):
        if self.num_hosts == 1:
            return []
        place = {"mode": "manual", "coordinator": f"127.0.0.1:{port}", "process-id": host}
        place |= {"num-processes": self.num_hosts, "heartbeat-timeout-s": HEARTBEAT_S}
        return [f"--distributed.{key}={value}" for key, value in place.items()]

    def _end_of(self, process):
        try:
            return process.wait(PROCESS_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # Faulthandler writes where it hangs.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            raise AssertionError(f"hangs for {PROCESS_DEADLINE_S:g} s, {self.describe()}") from None


def reference(agent, num_hosts):
    """Return the networks' checksum and the rows of an undisturbed run."""
    if (agent, num_hosts) not in _references:
        with tempfile.TemporaryDirectory(prefix="monkey-") as name:
            run = Run(
                pathlib.Path(name), agent=agent, num_hosts=num_hosts, rng=random.Random(agent)
            )
            with run.training(when=at_once):
                pass
            assert not any(run.starts[-1].codes), report(run)
            _references[agent, num_hosts] = run.assert_done()["networks_crc32"], run.rows()
    return _references[agent, num_hosts]


def disturb(seed, directory, *, num_hosts=1, name=None):
    """Make one run with the fault and at the moment that the seed says; raise if it was lost."""
    rng, kinds = random.Random(seed), kinds_on(num_hosts)
    kind = kinds[name or [*kinds][seed % len(kinds)]]
    agent = "toy" if kind.needs_toy else rng.choice(["toy", "toy", "impala", "r2d2"])
    run = Run(
        directory, agent=agent, num_hosts=num_hosts, rng=rng, flags=kind.flags, workers=kind.workers
    )
    try:
        with kind.mounted(run.disk):
            kind.act(run)
            assert_ended_as_documented(run, kind)
            # What one of several hosts has lost, none can resume from.
            has_lost = kind.loses_files and num_hosts > 1
            run.resume_until_done(may_refuse=kind.may_refuse or has_lost)
            summary = run.assert_done()
            if kind.compares:
                crc, rows = reference(agent, num_hosts)
                assert summary["networks_crc32"] == crc, "other networks than undisturbed"
                known = comparable(rows)
                strange = [row for row in comparable(run.rows()) if row not in known]
                assert not strange, f"rows that the undisturbed run does not have: {strange[:2]}"
    except Exception as error:
        error.add_note(report(run))
        raise


def assert_ended_as_documented(run, kind):
    """Assert that the exit codes are of the fault, and that the last line says what happened."""
    codes = set(run.starts[-1].codes)
    allowed = {0, *kind.codes, *({3} if run.num_hosts > 1 else ())}
    if not run.had_begun:  # Python itself and the command line: nothing can be lost yet.
        allowed |= {2, 3, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM}
    assert codes <= allowed, f"ended with {codes}, not one of {allowed}"
    if 0 in codes:
        assert codes > {0} or run.assert_done()
    if kind.speaks and run.had_begun:
        for code, line in zip(run.starts[-1].codes, run.starts[-1].last_lines(), strict=True):
            is_said = re.match("sebulba: |interrupted: |speed: |plot: |continue: ", line)
            assert code < 0 or is_said, f"ended with {code}, last line: {line}"


def report(run):
    """Return what was done, and all that the processes wrote."""
    logs = sorted(run.config.parent.glob("stderr-*"))
    texts = [f"--- {log.name}:\n{log.read_text(errors='replace').rstrip()}" for log in logs]
    return "\n".join([*run.notes, *texts])


def main():
    """Run the monkey, and end with 1 if any run was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--kind", help="the same fault in every run")
    options = parser.parse_args()
    failures, kinds = collections.Counter(), kinds_on(options.hosts)
    for seed in range(options.seed, options.seed + options.runs):
        name, begun = options.kind or [*kinds][seed % len(kinds)], time.monotonic()
        with tempfile.TemporaryDirectory(prefix="monkey-") as directory:
            try:
                disturb(seed, pathlib.Path(directory), num_hosts=options.hosts, name=name)
                result = "survived"
            except Exception as error:
                failures[name] += 1
                result = f"LOST: {type(error).__name__}: {error}\n" + "\n".join(error.__notes__)
        print(f"seed {seed} {name} ({time.monotonic() - begun:.1f} s): {result}", flush=True)
    print(f"{sum(failures.values())} of {options.runs} runs lost: {dict(failures)}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
