"""The programs of rings, made once in a process for tests whose configs differ in their seed alone.

Most of the time of a short run is the tracing of its programs, and most tests train the same few
configs. A test that changes code with `monkeypatch` makes its own, which no other test gets.
"""

import collections
import dataclasses
import functools
import sys

_NUM_KEPT = 24
_DIFFERENCES = {"seed": 0, "run_dir": None, "resume": None, "init_from": None}

_is_shared = True


def share():
    """Share the programs of rings and of remote actors from now on, if anything makes them."""
    make, programs = (sys.modules.get(f"sebulba.ring.{name}") for name in ("make", "programs"))
    if make is not None:
        make.make_programs = _remembered(programs.make_programs)
        programs.make_act_functions = _remembered(programs.make_act_functions)


def choose_for(item):
    """Share in a test, unless it may change what programs are traced from."""
    global _is_shared
    _is_shared = "monkeypatch" not in item.fixturenames


def _remembered(make):
    known = collections.deque(maxlen=_NUM_KEPT)

    @functools.wraps(make)
    def remembered(config, *arguments):
        import jax

        from sebulba.devices.mapping import is_jit_disabled

        if not _is_shared:
            return make(config, *arguments)
        key = (
            dataclasses.replace(config, **_DIFFERENCES),
            *map(_comparable, arguments),
            is_jit_disabled(),
            jax.config.jax_enable_x64,
        )
        for other, made in known:
            if other == key:
                return made
        made = make(config, *arguments)
        known.append((key, made))
        return made

    return remembered


def _comparable(argument):
    """Return the devices of roles, which are others at each call, or the argument."""
    of_all_hosts = getattr(argument, "learner_devices", None)
    if of_all_hosts is None:
        return argument
    return argument.actor, argument.learner, of_all_hosts.num_hosts
