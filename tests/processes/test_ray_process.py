"""What Ray sends to a machine, which may lack Sebulba or have another version of it."""

import platform
import subprocess

import pytest

from sebulba.processes import ray_process
from sebulba.processes.run_holder import RunHolder
from sebulba.remote.process import ActingProcess
from tests.subprocesses import started

# What Ray does on a machine: it loads the class, and calls its method.
LOADING = """
import pickle, sys, types
sys.modules["sebulba"] = SEBULBA
Holder = pickle.loads(sys.stdin.buffer.read())
holder = Holder("seed-0", MODULE, Holder.__name__, "9.9")
print(holder, Holder.__name__)
try:
    holder.call("follow")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", [RunHolder, ActingProcess])
@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ("None", "{}, which cannot run it: ModuleNotFoundError: import of sebulba halted"),
        ("types.SimpleNamespace(__version__='0.1')", "0.1 on {}. Install the same version"),
        ("types.SimpleNamespace(__version__='9.9')", "{}, which cannot run it: ModuleNotFoundErr"),
    ],
)
def test_a_machine_without_this_version_says_so_and_its_process_does_not_fail(kind, own, problem):
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="needs the extra ray")
    code = LOADING.replace("SEBULBA", own).replace("MODULE", repr(kind.__module__))
    with started("-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.buffer.write(cloudpickle.dumps(ray_process._holder_of(kind)))
        process.stdin.close()
        shown, printed = process.stdout.read().splitlines()
    assert shown == f"seed-0 {kind.__name__}"
    assert printed.startswith(problem.format(platform.node()))
