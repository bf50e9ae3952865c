"""Random ends of runs, and signals at every moment of a start: what the process says and leaves.

`python -m tests.faults.random_endings [--count 40] [--seed 0]` starts runs whose end is drawn at
random, and compares how each of them ended with what its `Plan` says.
`python -m tests.faults.random_endings --sweep 50 [--until 5000]` sends one signal to each run, 50
milliseconds later in each than in the one before.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time

from tests.faults.ending_environment import CAUSE
from tests.subprocesses import environment, pids_in_session, started

DEADLINE_S = 60.0
TRACEBACK = "Traceback (most recent call last)"
INTERRUPTED = re.compile(r"^(sebulba: )?(interrupted|stopped by SIG)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a process ended."""

    code: int  # negative: the signal that killed it
    seconds: float  # after the last signal, or else after the start
    stderr: str
    left: list[str]  # command lines of processes that outlived it


def run_to_end(*arguments, variables, act=lambda process: None):
    """Start Python with arguments in a session of its own; return how it ended.

    `act` is called once it has started, and may wait and send signals.
    """
    with (
        tempfile.TemporaryFile("w+") as stderr,
        started(*arguments, variables=variables, stdout=stderr, stderr=stderr) as process,
    ):
        act(process)
        began = time.monotonic()
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            code = 999
        seconds = time.monotonic() - began
        left = [] if code == 999 else commands_in_session(process.pid)
        stderr.seek(0)
        return End(code=code, seconds=seconds, stderr=stderr.read(), left=left)


def commands_in_session(leader, patience_s=2.0):
    """Return the command lines of a session's processes that do not end by themselves."""
    deadline = time.monotonic() + patience_s
    while (pids := pids_in_session(leader)) and time.monotonic() < deadline:
        time.sleep(0.02)
    commands = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            commands.append(command.replace(b"\0", b" ").decode()[-100:])
    return commands


def judge_all(cases, judge, describe, parallel):
    """Judge the ends of cases; print a line for each, and return how many of them are wrong.

    `judge` runs a case in a directory, and returns its end and what is wrong with it; `describe`
    returns the line of a case, its end, and what is wrong.
    """

    def judged_apart(case):
        with tempfile.TemporaryDirectory() as directory:
            return case, *judge(case, pathlib.Path(directory))

    num_faulty = 0
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        for case, end, faults in pool.map(judged_apart, cases):
            num_faulty += bool(faults)
            print(describe(case, end, faults), flush=True)
            if faults:
                print("    " + "\n    ".join(end.stderr.strip().splitlines()[-40:]), flush=True)
    print(f"{num_faulty} of {len(cases)} ends are wrong")
    return num_faulty


# One signal at every moment of a start.

PYTHON_STARTS_S = 0.3  # on a busy machine, until the first lines of a package have run
SWEPT = {
    "envpool": ("impala_cartpole", "--run.stop-at-return=null", "--run.total-env-steps=100000000"),
    "anakin": ("ppo_minatar_breakout", "--actor.num-envs=16", "--actor.trajectory-length=16"),
    "workers": (
        *("impala_cartpole", "--run.stop-at-return=null", "--run.total-env-steps=100000000"),
        *("--env.suite=gymnasium", "--actor.num-envs=3", "--actor.threads-per-device=1"),
        "--env.options={vectorization_mode: async}",
    ),
}
"""Command lines of runs that do not end by themselves within the sweep."""


def signal_after(seconds, number):
    """Return an act: after so many seconds a terminal's Ctrl-C, or a SIGTERM as clusters send."""

    def act(process):
        time.sleep(seconds)
        # A terminal signals the whole foreground process group.
        send = os.killpg if number == signal.SIGINT else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(process.pid, number)

    return act


def swept(name, seconds, number, directory):
    """Return how a run ended that got one signal after so many seconds of its life."""
    return run_to_end(
        *("-m", "sebulba.train", *SWEPT[name], "--run-dir", directory / "run"),
        variables=environment(JAX_NUM_CPU_DEVICES="1"),
        act=signal_after(seconds, number),
    )


def faults_of_interruption(end, seconds, number):
    """Return what is wrong with the end of a run that got one signal after so many seconds."""
    if seconds < PYTHON_STARTS_S and end.code in (1, -number):
        return []  # Python itself handles signals until Sebulba's first lines have run.
    faults = []
    if end.code != 128 + number:
        faults.append(f"exit code {end.code}, expected {128 + number}")
    if TRACEBACK in end.stderr:
        faults.append("a traceback")
    if (count := len(INTERRUPTED.findall(end.stderr))) != 1:
        faults.append(f"{count} lines say that it was interrupted")
    if end.left:
        faults.append(f"left {end.left}")
    return faults


def sweep(names, moments, parallel):
    """Signal a run of each name at each moment (in seconds); print and return what is wrong."""
    numbers = itertools.cycle([signal.SIGINT, signal.SIGTERM])
    cases = [(name, moment, next(numbers)) for name in names for moment in moments]

    def judge(case, directory):
        end = swept(*case, directory)
        return end, faults_of_interruption(end, *case[1:])

    def describe(case, end, faults):
        name, moment, number = case
        last = end.stderr.strip().splitlines()[-1:] or [""]
        return (
            f"{'✗' if faults else '✓'} {name:8} {number.name:7} {moment:5.2f} s"
            f" code {end.code:4} after {end.seconds:4.1f} s  {'; '.join(faults) or last[0][:90]}"
        )

    return judge_all(cases, judge, describe, parallel)


# Random ends.

CONFIG = """
env: {env}
agent: {{name: 'tests.faults.ending_agent:EndingAgent'}}
devices: {{actor: [0], learner: [0]}}
actor: {{num_envs: 2, threads_per_device: 1, trajectory_length: 5, env_timeout_s: {timeout_s}}}
learner: {{policy_lag: 0}}
checkpoint: {{interval_s: 0.5}}
run: {{mode: {mode}, total_env_steps: {goal}, log_interval_env_steps: 50, close_timeout_s: 2}}
"""
ENV_TIMEOUT_S, CLOSE_TIMEOUT_S, STOP_TIMEOUT_S = 2.0, 2.0, 7.0
SLACK_S = 10.0  # of a busy machine, and for the writers of metrics
AT_START = ("constructor", "first reset", "act", "loss")
IN_ENVIRONMENT = ("constructor", "first reset", "reset", "step", "hang")
IN_LEARNER = ("num_updates_per_cycle", "observer", "non-finite")
# Where an error has a type; the others fail in their own way.
RAISING = (*AT_START, "reset", "step", "shard_actor_state", "num_updates_per_cycle", "observer")
HARMLESS = ("nothing", "writer")
FAILS = (*AT_START, *IN_ENVIRONMENT[2:], *IN_LEARNER, "shard_actor_state", "writer", "disk")
FAILS += ("callback", *["nothing"] * 5)
CLOSES = ("returns", "raises", "hangs", "exits", "interrupts", "ends the process", "leaves a child")
MODES = ("threads", "serial", "anakin", "workers", "workers in serial mode")
SIGNALS = {
    "none": (),
    "SIGINT": ((signal.SIGINT, 0.0),),
    "SIGTERM": ((signal.SIGTERM, 0.0),),
    "SIGTERM twice": ((signal.SIGTERM, 0.05), (signal.SIGTERM, 0.0)),
    "SIGINT twice, later": ((signal.SIGINT, 1.5), (signal.SIGINT, 0.0)),
    "SIGTERM in the last save": ((signal.SIGTERM, 0.0),),
    "SIGTERM while compiling": ((signal.SIGTERM, 0.0),),
    "SIGTERM to everyone": ((signal.SIGTERM, 0.0),),
}
"""Which signals are sent, and the pause in seconds after each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run is to end."""

    fails: str
    error: str  # error, exit or interrupt: what is raised there
    close: str
    signal: str
    mode: str

    @property
    def is_possible(self):
        """Whether such a run exists, and ends."""
        has_workers = self.mode.startswith("workers")
        if self.error != "error" and self.fails not in RAISING:
            return False
        if self.mode == "anakin" and (self.fails in IN_ENVIRONMENT or self.close != "returns"):
            return False
        if self.mode == "serial" and self.fails == "hang":  # which nobody watches
            return False
        if self.signal == "SIGTERM while compiling" and self.fails != "nothing":
            return False
        if self.signal == "SIGTERM in the last save" and self.fails not in (*HARMLESS, "disk"):
            return False
        if self.signal == "SIGTERM to everyone" and not has_workers:
            return False
        return self.fails != "callback" or self.signal == "none"

    @property
    def moment(self):
        """What the signal waits for."""
        if self.signal == "SIGTERM while compiling":
            return "compiling"
        if self.signal == "SIGTERM in the last save":
            return "saving"
        return "training" if self.fails in HARMLESS else "failure"

    @property
    def ends_itself(self):
        """Whether the run reaches its goal unless it fails."""
        return self.signal in ("none", "SIGTERM in the last save") or self.fails == "disk"

    def codes(self):
        """Return the exit codes of `docs/troubleshooting.md` that tell the truth about this run."""
        own = {"hang": 5, "non-finite": 6, "disk": 7, "callback": 1}.get(self.fails, 3)
        codes = {0 if self.fails in HARMLESS else own}
        numbers = [128 + number for number, _ in SIGNALS[self.signal]]
        if self.signal != "none" and self.fails in (*HARMLESS, "hang"):
            codes = set(numbers)
        if self.fails in AT_START:
            codes |= {*numbers, own}  # whichever comes first
        if self.fails in IN_ENVIRONMENT:  # An environment that fails after the signal is no cause.
            codes |= set(numbers)
        if self.signal == "SIGINT twice, later":  # The second may come before the end.
            codes |= set(numbers)
        if self.close == "ends the process" and self.mode in ("threads", "serial"):
            codes.add(9)
        return codes


def draw(rng):
    """Return a random plan."""
    while True:
        plan = Plan(
            fails=rng.choice(FAILS),
            error=rng.choice(["error", "error", "exit", "interrupt"]),
            close=rng.choice(CLOSES),
            signal=rng.choice(["none", *SIGNALS]),
            mode=rng.choice(MODES),
        )
        if plan.is_possible:
            return plan


def end_of(plan, directory):
    """Run a plan; return how it ended."""
    (directory / "moments").mkdir()
    env = "{suite: jax, id: Catch-v0}"
    if plan.mode != "anakin":
        vectorization = "async" if plan.mode.startswith("workers") else "sync"
        options = f"{{vectorization_mode: {vectorization}}}"
        name = "tests.faults.ending_environment:Ending-v0"
        env = f"{{suite: gymnasium, id: '{name}', options: {options}}}"
    config = CONFIG.format(
        env=env,
        mode={"workers": "threads", "workers in serial mode": "serial"}.get(plan.mode, plan.mode),
        goal=1000 if plan.ends_itself else 10**9,
        timeout_s=ENV_TIMEOUT_S,
    )
    (directory / "config.yaml").write_text(config + f"run_dir: {directory / 'run'}\n")
    is_command = plan.fails != "callback"
    moments = str(directory / "moments")
    text = json.dumps({**dataclasses.asdict(plan), "moments": moments})

    def act(process):
        if SIGNALS[plan.signal]:
            moment = directory / "moments" / plan.moment
            while process.poll() is None and not moment.exists():
                time.sleep(0.005)
        for number, pause_s in SIGNALS[plan.signal]:
            to_everyone = plan.signal == "SIGTERM to everyone"
            for pid in pids_in_session(process.pid) if to_everyone else [process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause_s)

    return run_to_end(
        *("-m", "sebulba.train" if is_command else "tests.faults.ending_agent"),
        directory / "config.yaml",
        variables=environment(JAX_NUM_CPU_DEVICES="1", ENDING=text),
        act=act,
    )


def faults_of(plan, end, run_dir):
    """Return what is wrong with how a run has ended."""
    faults = []
    lines = end.stderr.strip().splitlines() or [""]
    if end.code == 1:  # From Python: it prints an exception's notes behind the exception.
        lines = [line for line in lines if not line.startswith("Also: close of ")] or [""]
    if end.code not in plan.codes():
        faults.append(f"exit code {end.code}")
    has_begun = (run_dir.parent / "moments" / "training").exists()
    file = run_dir / "summary.json"
    summary = json.loads(file.read_text()) if file.exists() else None
    if has_begun and summary is None and end.code != 130:  # A second signal waits for nothing.
        faults.append("no summary.json")
    status = {0: "done", 7: "unsaved", 130: "interrupted", 143: "interrupted", 9: None}
    if summary and (expected := status.get(end.code, "failed")) and summary["status"] != expected:
        faults.append(f"status {summary['status']}")
    if end.code in (1, 3, 5, 6) and not any(cause in lines[-1] for cause in causes(plan)):
        faults.append("the last line does not name the cause")
    if end.code in (130, 143) and not INTERRUPTED.search(lines[-1]):
        faults.append("the last line does not name the signal")
    is_silent = plan.fails in HARMLESS and plan.close in ("returns", "hangs", "leaves a child")
    if is_silent and TRACEBACK in end.stderr:
        faults.append("a traceback")
    # A process that an environment starts in this process is the environment's own.
    own = "sleep 3600" if not plan.mode.startswith("workers") else "no such process"
    if left := [command for command in end.left if own not in command]:
        faults.append(f"left {left}")
    if plan.signal != "none" and end.seconds > STOP_TIMEOUT_S + CLOSE_TIMEOUT_S + SLACK_S:
        faults.append(f"ended only after {end.seconds:.0f} s")
    return faults


def causes(plan):
    """Return texts of which one is in the last line of a run that failed."""
    if plan.signal == "SIGTERM to everyone":
        yield "worker process ended"
    yield {"hang": "env_timeout_s", "non-finite": "NonFiniteError"}.get(plan.fails, CAUSE)
    if plan.error == "exit":
        yield from ("SystemExit", "worker process ended with code")


def judged(seed, directory):
    """Run the plan of a seed; return it, its end, and what is wrong."""
    plan = draw(random.Random(seed))
    end = end_of(plan, directory)
    return plan, end, faults_of(plan, end, directory / "run")


def play(seeds, parallel):
    """Run the plans of seeds; print a table, and return how many ended wrongly."""

    def describe(seed, end, faults):
        plan = draw(random.Random(seed))
        fails = plan.fails if plan.error == "error" else f"{plan.fails} ({plan.error})"
        return (
            f"| {seed} | {fails} | {plan.close} | {plan.signal} | {plan.mode} |"
            f" {' or '.join(map(str, sorted(plan.codes())))} | {end.code} |"
            f" {end.seconds:.1f} s | {'; '.join(faults) or 'as expected'} |"
        )

    return judge_all(seeds, lambda *case: judged(*case)[1:], describe, parallel)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="runs with random ends")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first of them")
    parser.add_argument("--sweep", type=int, metavar="MS", help="signals, this far apart")
    parser.add_argument("--since", type=int, default=None, metavar="MS", help="the first signal")
    parser.add_argument("--until", type=int, default=5000, metavar="MS", help="the last signal")
    parser.add_argument("--config", choices=SWEPT, action="append", help="swept; default: all")
    parser.add_argument("--parallel", type=int, default=2, help="runs at the same time")
    options = parser.parse_args()
    if options.sweep:
        since = options.sweep if options.since is None else options.since
        moments = [each / 1000 for each in range(since, options.until + 1, options.sweep)]
        raise SystemExit(bool(sweep(options.config or SWEPT, moments, options.parallel)))
    seeds = range(options.seed, options.seed + options.count)
    raise SystemExit(bool(play(seeds, options.parallel)))


if __name__ == "__main__":
    main()
