"""Processes that act without a process: they die on command, and only plain things reach them."""

import pickle
import time

import numpy as np

from sebulba.processes.remote_process import ProcessGone, ProcessLost
from sebulba.remote.make import RemoteCollectors
from sebulba.remote.process import ActingProcess


def assert_plain(value):
    """Check that a value is of arrays, numbers, text, and lists and dictionaries of these alone."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            assert_plain(each)
    else:
        assert value is None or type(value) in (np.ndarray, int, float, bool, str), type(value)


def crossed(value):
    """Return a value as it arrives elsewhere: a copy, whose arrays cannot be written."""
    assert_plain(value)
    return _frozen(pickle.loads(pickle.dumps(value)))


def _frozen(value):
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        return type(value)(_frozen(each) for each in value)
    return value


class FakeProcess:
    """Acts when it is waited for; its process dies in the calls that `dies` is told of."""

    def __init__(self, name, dies):
        self.name = name
        self.is_killed = False
        self._dies = dies
        self._replace()
        self._call = None

    num_processes = 0

    def _replace(self):
        self._acting = ActingProcess()
        self.num_processes += 1

    def call(self, method, *arguments):
        assert not self.is_killed and self._call is None
        self._call = method, [crossed(each) for each in arguments]

    def wait(self, seconds):
        (method, arguments), self._call = self._call, None
        how = self._dies(self.name, method, arguments)
        if how == "hangs":
            self._call = method, arguments
            time.sleep(0.001)  # Other threads go on.
            return None
        if method == "set_up":
            # In this process, which keeps its CPUs and its devices.
            arguments[0] = arguments[0] | {"num_cpus": None, "uses_gpu": True}
        if how == "gone":
            raise ProcessGone("Ray is told to start no other")
        if how in ("before", "replaced"):
            self._replace()
        if how == "before":
            raise ProcessLost("it died before it acted")
        answer = getattr(self._acting, method)(*arguments)
        if how == "after":
            self._replace()
            raise ProcessLost("it died after it acted")
        if how == "unheard":  # The process lives, and has acted.
            raise ProcessLost("the answer was lost")
        answer[0]["pid"] = self.num_processes
        return crossed(answer)

    def kill(self):
        self.is_killed = True
        self._acting = None


class FakeProcesses:
    """Starts fake processes."""

    def __init__(self, dies=lambda name, method, arguments: None):
        """Take what is asked at each call: `dies(name, method, arguments)`.

        It returns None, or how the process ends: `before` it acts, `after`, `replaced` by another
        without a word, `unheard`, `hangs`, `gone`.
        """
        self.started = []
        self.num_shared = 0
        self._dies = dies

    def start(self, name):
        self.started.append(FakeProcess(name, self._dies))
        return self.started[-1]

    num_store_bytes = None

    def share(self, arrays):
        self.num_shared += 1
        return crossed(arrays)


def deaths(plan):
    """Return a `dies` for `{(name, cycle): [how, how, …]}`, the ends of calls of `collect`."""
    left = {key: iter(ends) for key, ends in plan.items()}

    def dies(name, method, arguments):
        if method != "collect":
            return None
        return next(left.get((name, arguments[1]["cycle"]), iter(())), None)

    return dies


def make_collector(config, processes, **options):
    """Return the `make_collector` of a ring whose remote actors are fake processes."""
    return RemoteCollectors(processes, config, **options)
