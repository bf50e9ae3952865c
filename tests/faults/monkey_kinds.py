"""The faults of `tests.faults.monkey`: small functions, and the table of how a run may then end."""

import contextlib
import dataclasses
import os
import pathlib
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from signal import SIGABRT, SIGBUS, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM


@dataclasses.dataclass(frozen=True)
class Kind:
    """A fault, and what it may do to a run."""

    act: Callable  # (run): trains, with the fault
    codes: tuple[int, ...] = ()  # of the process, besides 0 for a run that was done nevertheless
    _: dataclasses.KW_ONLY
    compares: bool = True  # ends with the networks and rows of the undisturbed run
    hosts: tuple[int, ...] = (1, 2)  # how many there may be
    needs_toy: bool = False  # the agent
    workers: bool = False  # Gymnasium's, in processes
    speaks: bool = True  # the last line can be read
    loses_files: bool = False
    may_refuse: bool = False  # resuming may end with 4
    flags: tuple[str, ...] = ()  # of every start
    disk: str | None = None  # mount options of a disk of its own, which root alone can make

    @contextlib.contextmanager
    def mounted(self, path):
        """Put a small disk at the path if the fault needs one."""
        if self.disk is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", self.disk, "tmpfs", path], check=True)
        try:
            yield
        finally:
            if self.disk is not None:
                subprocess.run(["umount", "-l", path], check=True)


def kinds_on(num_hosts):
    """Return the faults of runs on so many hosts, by name."""
    return {
        name: kind
        for name, kind in KINDS.items()
        if num_hosts in kind.hosts and (os.geteuid() == 0 or not kind.disk)
    }


def at_once(run, process, directory):
    """Wait for no moment."""


def once_saved(run, process, directory):
    """Wait for the first checkpoint, and a little longer."""
    while process.poll() is None and not run.steps():
        time.sleep(0.01)
    time.sleep(run.rng.uniform(0, 1.5))


def live(act, **options):
    """Return a fault at a random moment of training; `act` may return what undoes it at the end."""

    def fault(run):
        with run.training(**options) as victim:
            undo = act(run, victim)
        if undo is not None:
            undo()

    return fault


def between(damage):
    """Return a fault between two starts: the first is killed."""

    def fault(run):
        live(kill, when=once_saved)(run)
        # What cannot be damaged is not there yet.
        with contextlib.suppress(FileNotFoundError, IndexError):
            damage(run)

    return fault


def meddle(what, steps):
    """Return a fault of the environment or the agent, at one of so many steps."""

    def fault(run):
        with run.training(meddle=f"{what} {run.rng.randrange(1, steps)}"):
            pass

    return fault


def send(*numbers, within_s=0.0):
    """Return an act that sends signals, up to so many seconds apart."""

    def act(run, victim):
        for number in numbers:
            victim.send_signal(number)
            time.sleep(run.rng.uniform(0, within_s))

    return act


kill = send(SIGKILL)


def signal_everyone(run):
    with run.training(everyone=True) as processes:
        for process in processes:
            process.send_signal(SIGTERM)


def while_it_saves(run, victim, directory):
    """Stop it within a save: an unfinished checkpoint has no number for a name."""

    def is_saving():
        return any(not path.name.isdecimal() for path in directory.glob("checkpoints/*"))

    while victim.poll() is None:
        if is_saving():
            victim.send_signal(SIGSTOP)
            if is_saving() and run.rng.random() < 0.5:
                return
            victim.send_signal(SIGCONT)
        time.sleep(0.001)


def fill(run, victim=None):
    """Use up all blocks and inodes of the run's own small disk; return what frees them."""
    ballast = run.disk / "ballast"
    ballast.mkdir()
    with contextlib.suppress(OSError), (ballast / "0").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    with contextlib.suppress(OSError):
        for number in range(1, 401):
            (ballast / str(number)).touch()
    return lambda: shutil.rmtree(ballast)


def fill_for_a_while(run, victim):
    free = fill(run)
    time.sleep(run.rng.uniform(0.1, 1.5))
    free()


def resume_on_a_full_disk(run):
    live(kill)(run)
    free = fill(run)
    live(lambda run, victim: free, when=at_once)(run)


def make_read_only(run, victim):
    """Files that are open already can be written to; everything else is refused."""
    if not run.path.exists():
        return None
    subprocess.run(["mount", "--bind", run.path, run.path], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", run.path], check=True)
    return lambda: subprocess.run(["umount", "-l", run.path], check=True)


def move(run, victim):
    """Move the run directory until the run has ended."""
    away = run.disk / "away"

    def settle():
        if away.exists():
            shutil.rmtree(run.path, ignore_errors=True)
            away.rename(run.path)

    if run.path.exists():
        run.path.rename(away)
    return settle


def remove(run, victim):
    shutil.rmtree(run.path, ignore_errors=True)


def remove_checkpoints(run, victim):
    shutil.rmtree(run.rng.choice(run.directories()) / "checkpoints", ignore_errors=True)


def second_writer(run):
    """One of the two is refused, also while the first one does not answer."""
    overlaps = []

    def once_open(run, second, directory):
        while second.poll() is None and "run directory:" not in run.starts[-1].logs[0].read_text():
            time.sleep(0.01)
        overlaps.append(first.poll() is None)

    with run.training(when=run.rng.choice([once_saved, None])) as first:
        if run.rng.random() < 0.5 and first.poll() is None:
            first.send_signal(SIGSTOP)
        with run.training(when=once_open):
            pass
        second = run.starts.pop()
        first.send_signal(SIGCONT)
    codes = [*run.starts[-1].codes, *second.codes]
    assert 2 in codes or not any(overlaps), f"two writers at the same time ended with {codes}"
    assert 0 in codes, f"two writers ended with {codes}, neither is done"


def limit(process, which, value):
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, which, (value, resource.prlimit(process.pid, which)[1]))


def limit_file_size(run, victim):
    limit(victim, resource.RLIMIT_FSIZE, run.rng.choice([0, 1000, 10_000]))


def limit_memory(run, victim):
    with contextlib.suppress(FileNotFoundError):
        pages = int(pathlib.Path(f"/proc/{victim.pid}/statm").read_text().split()[0])
        limit(victim, resource.RLIMIT_AS, pages * resource.getpagesize() + (32 << 20))


def use_up_descriptors(run, victim):
    limit(victim, resource.RLIMIT_NOFILE, 3)
    time.sleep(run.rng.uniform(0.1, 1.5))
    if run.rng.random() < 0.5:
        limit(victim, resource.RLIMIT_NOFILE, 1024)


def close_pipe(run):
    reading, writing = os.pipe()
    with run.training(output=writing):
        os.close(reading)
    os.close(writing)


def kill_a_worker(run, victim):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = pathlib.Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text()
        for child in run.rng.sample(children.split(), len(children.split())):
            if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                return os.kill(int(child), SIGKILL)


def damage_checkpoint(damage):
    """Return a damage to a random file of the newest checkpoint."""

    def act(run):
        step = run.steps()[-1]
        directory = run.rng.choice(run.directories()) / f"checkpoints/{step}"
        files = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size]
        path = run.rng.choice(sorted(files))
        path.write_bytes(damage(run.rng, bytearray(path.read_bytes())))

    return act


def truncate(rng, content):
    return content[: rng.randrange(len(content))]


def flip(rng, content):
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def append(name, junk):
    """Return a damage to the end of a file."""

    def act(run):
        with (run.path / name).open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(junk)

    return act


def damage_run_json(run):
    junk = run.rng.choice([b"", b"[]", b"null", b"{", b"\xff\0"])
    (run.path / "run.json").write_bytes(junk)


KILLED, TERMINATED = -SIGKILL, 128 + SIGTERM
FAILED, STUCK, NON_FINITE, UNSAVED = 3, 5, 6, 7
TORN, NOT_UTF8 = b'{"env_steps": 17', b"\xff\xfe\x80\n\xc3"
ENV_STEPS, CYCLES = 1000, 150
DISK, INODES = "size=24m", "size=24m,nr_inodes=400"
RESTART, SKIP = ("--actor.on-env-error=restart",), ("--learner.on-non-finite=skip",)
ENV_TIMEOUT, UPDATE_TIMEOUT = ("--actor.env-timeout-s=2",), ("--learner.update-timeout-s=3",)
FEW = ("--actor.num-envs=2", "--actor.threads-per-device=1")
SAVING = ("--checkpoint.interval-s=0",)
ALONE, SEVERAL, TOY = {"hosts": (1,)}, {"hosts": (2,)}, {"needs_toy": True}
SILENT = {"hosts": (1,), "speaks": False}
# Environments that were recreated, or an update that was not applied: other networks in the end.
OTHER = {"compares": False}
WORKERS = {"workers": True, "hosts": (1,), "compares": False}
WITHOUT_STREAMS = (
    "import os, sys; os.close(1); os.close(2);"
    "os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])"
)
KINDS = {
    "killed": Kind(live(kill), (KILLED,)),
    "killed-in-a-save": Kind(live(kill, when=while_it_saves), (KILLED,), flags=SAVING),
    "sigterm": Kind(live(send(SIGTERM)), (TERMINATED,)),
    "sigint": Kind(live(send(SIGINT)), (128 + SIGINT,)),
    "sighup": Kind(live(send(SIGHUP)), (128 + SIGHUP,)),
    "two-signals": Kind(
        live(send(SIGTERM, SIGINT, within_s=0.5)), (TERMINATED, -SIGINT), speaks=False
    ),
    "signal-then-killed": Kind(
        live(send(SIGTERM, SIGKILL, within_s=0.5)), (TERMINATED, KILLED), speaks=False
    ),
    "everyone-signalled": Kind(signal_everyone, (TERMINATED,), **SEVERAL),
    "stopped-and-continued": Kind(live(send(SIGSTOP, SIGCONT, within_s=2))),
    "stopped-for-long-then-killed": Kind(live(send(SIGSTOP, SIGKILL, within_s=12)), (KILLED,)),
    "disk-full": Kind(live(fill), (UNSAVED,), disk=DISK),
    "disk-full-for-a-while": Kind(live(fill_for_a_while), (UNSAVED,), disk=DISK),
    "inodes-used-up": Kind(live(fill), (UNSAVED,), disk=INODES),
    "resumed-on-a-full-disk": Kind(resume_on_a_full_disk, (2, FAILED, UNSAVED), disk=DISK),
    "read-only": Kind(live(make_read_only), (UNSAVED,), disk=DISK),
    "run-directory-moved": Kind(live(move), (UNSAVED,)),
    "run-directory-removed": Kind(live(remove), (UNSAVED,), loses_files=True),
    "checkpoints-removed": Kind(live(remove_checkpoints), (UNSAVED,), loses_files=True),
    "second-writer": Kind(second_writer, (2,), **ALONE),
    "file-size-limit": Kind(live(limit_file_size), (FAILED, UNSAVED), **SILENT),
    "descriptors-used-up": Kind(live(use_up_descriptors), (FAILED, UNSAVED), **ALONE),
    # Native code ends the process if it gets no memory.
    "memory-limit": Kind(
        live(limit_memory), (FAILED, UNSAVED, -SIGABRT, -SIGSEGV, -SIGBUS), **SILENT
    ),
    "output-pipe-closed": Kind(close_pipe, **SILENT),
    "started-without-output": Kind(
        live(lambda run, victim: None, before=("-c", WITHOUT_STREAMS), when=at_once), **SILENT
    ),
    "worker-killed": Kind(live(kill_a_worker), (FAILED,), flags=FEW, **WORKERS),
    "worker-killed-and-restarted": Kind(live(kill_a_worker), flags=FEW + RESTART, **WORKERS),
    "newest-checkpoint-truncated": Kind(
        between(damage_checkpoint(truncate)), (KILLED,), may_refuse=True
    ),
    "newest-checkpoint-flipped": Kind(between(damage_checkpoint(flip)), (KILLED,), may_refuse=True),
    "jsonl-torn": Kind(between(append("metrics.jsonl", TORN)), (KILLED,)),
    "jsonl-not-utf8": Kind(between(append("metrics.jsonl", NOT_UTF8)), (KILLED,)),
    "csv-torn": Kind(between(append("metrics.csv", TORN)), (KILLED,)),
    "csv-not-utf8": Kind(between(append("metrics.csv", NOT_UTF8)), (KILLED,)),
    "run-json-damaged": Kind(between(damage_run_json), (KILLED,)),
    "config-touched": Kind(between(append("config.yaml", b"# looked at\n")), (KILLED,)),
    "env-raises": Kind(meddle("raise", ENV_STEPS), (FAILED,)),
    "env-raises-and-restarts": Kind(meddle("raise", ENV_STEPS), flags=RESTART, **OTHER),
    "env-quits": Kind(meddle("quit", ENV_STEPS), (FAILED,)),
    "env-hangs": Kind(meddle("hang", ENV_STEPS), (STUCK,), flags=ENV_TIMEOUT),
    "env-slow": Kind(meddle("slow", ENV_STEPS)),
    "env-nan": Kind(meddle("nan", ENV_STEPS), (FAILED,)),
    "env-nan-and-restarts": Kind(meddle("nan", ENV_STEPS), flags=RESTART, **OTHER),
    "env-changes-directory": Kind(meddle("chdir", ENV_STEPS)),
    "clock-set-back": Kind(meddle("clock", ENV_STEPS)),
    "loss-nan": Kind(meddle("loss", CYCLES), (NON_FINITE,), **TOY, **OTHER),
    "loss-nan-skipped": Kind(meddle("loss", CYCLES), flags=SKIP, **TOY, **OTHER),
    "agent-hangs": Kind(meddle("agent-hangs", CYCLES), (STUCK,), flags=UPDATE_TIMEOUT, **TOY),
    "agent-miscounts": Kind(meddle("agent-miscounts", CYCLES), (FAILED,), **TOY),
}
