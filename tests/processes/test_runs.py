"""Several runs at a time: what each of their processes is given."""

import types

import pytest

from sebulba.processes import runs
from sebulba.processes.runs import TrainingRun, train_runs


@pytest.mark.parametrize(
    ("num_jobs", "given", "expected"),
    [
        (1, {}, {}),
        (3, {}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.250"}),
        (3, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".1"}, {}),
        (3, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, {}),
    ],
)
def test_runs_at_a_time_divide_the_memory_of_a_gpu(num_jobs, given, expected, monkeypatch):
    for name in runs.GPU_MEMORY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    started = []

    def start(self, argv, *, variables, output):
        started.append(dict(variables))
        return types.SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(runs.Children, "start", start)
    each = [TrainingRun(name=str(i), directory=".", argv=()) for i in range(4)]
    nothing = {"on_start": lambda run: None, "on_end": lambda run, code: None}
    assert train_runs(each, num_jobs=num_jobs, **nothing) == 0
    assert started == [expected] * 4
