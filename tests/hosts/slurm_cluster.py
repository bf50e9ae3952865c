"""A Slurm cluster of nodes on this machine, without Munge; Debian has it as `slurm-wlm`."""

import contextlib
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from tests.hosts.processes import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol")
IS_HERE = all(map(shutil.which, PROGRAMS))
NODE_TIMEOUT_S = 10  # without a sign of a node, until its jobs are requeued
START_S = 30.0
CONFIG = """
ClusterName=sebulba
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmctldPidFile={path}/controller.pid
SlurmdPidFile={path}/%n.pid
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdTimeout={timeout}
KillWait=20
MinJobAge=3600
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """Nodes `n0`, `n1`, … with one CPU each, for use in a `with`."""

    def __init__(self, path, num_nodes):
        self._path = path
        self._variables = {**os.environ, "SLURM_CONF": str(path / "slurm.conf")}
        self._nodes = {f"n{number}": free_port() for number in range(num_nodes)}
        self._processes = {}

    def __enter__(self):
        values = {"host": socket.gethostname(), "port": free_port(), "user": getpass.getuser()}
        nodes = [
            f"NodeName={name} NodeHostname={values['host']} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"
            for name, port in self._nodes.items()
        ]
        for name in ("state", *self._nodes):
            (self._path / name).mkdir(parents=True)
        text = CONFIG.format(path=self._path, timeout=NODE_TIMEOUT_S, **values)
        (self._path / "slurm.conf").write_text("".join([text, *nodes]))
        self._start("slurmctld", "-D")
        for node in self._nodes:
            self.start(node)
        deadline = time.monotonic() + START_S
        while self._tell("sinfo", "-h", "-t", "idle", "-o", "%D").split() != [str(len(nodes))]:
            assert time.monotonic() < deadline, self.log("slurmctld")
            time.sleep(0.2)
        return self

    def __exit__(self, *error):
        for node in self._nodes:
            self.kill(node)
        self._end("slurmctld")

    def submit(self, script, *flags):
        """Submit a job; return its number."""
        return self._tell("sbatch", "--parsable", *map(str, flags), str(script)).strip()

    def job(self, number):
        """Return the fields of a job, such as `JobState` and `Restarts`."""
        words = self._tell("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def nodes_of(self, number):
        """Return the names of a job's nodes."""
        return self._tell("scontrol", "show", "hostnames", self.job(number)["NodeList"]).split()

    def start(self, node):
        """Start a node."""
        self._start(node, "-D", "-N", node)

    def kill(self, node):
        """End a node's processes with SIGKILL, as if its machine were gone."""
        self._end(node)
        mark = f"SLURMD_NODENAME={node}\0".encode()
        own = f"SLURM_CONF={self._variables['SLURM_CONF']}\0".encode()
        victims = set()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                text = (process / "environ").read_bytes()
                if mark in text and own in text:
                    victims |= {int(process.name), *_step_of(process)}
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self, name):
        """Return what the daemon of a node, or `slurmctld`, wrote."""
        return (self._path / f"{name}.log").read_text()

    def _start(self, name, *flags):
        program = name if name == "slurmctld" else "slurmd"
        with (self._path / f"{name}.log").open("a") as log:
            self._processes[name] = subprocess.Popen(
                [program, *flags],
                env=self._variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, name):
        process = self._processes[name]
        process.kill()
        process.wait()

    def _tell(self, *command):
        done = subprocess.run(command, env=self._variables, capture_output=True, text=True)
        return done.stdout


def _step_of(task):
    """Return the number of the daemon that has started a task, in a list."""
    status = (task / "status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
    name = pathlib.Path(f"/proc/{parent}/comm").read_text()
    return [int(parent)] if name.startswith("slurmstepd") else []
