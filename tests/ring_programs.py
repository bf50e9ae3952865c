"""The programs of rings, made once in a process for tests that make them from the same.

Most of the time of a short run is the tracing of its programs, and most tests train the same few
agents on the same few tasks. A test that changes code with `monkeypatch` makes its own, which no
other test gets, unless it is marked `shares_programs`: nothing that it changes is traced.
"""

import collections
import copy
import dataclasses
import functools
import sys

_NUM_KEPT = 24

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
    is_marked = item.get_closest_marker("shares_programs") is not None
    _is_shared = "monkeypatch" not in item.fixturenames or is_marked


def _remembered(make):
    known = collections.deque(maxlen=_NUM_KEPT)  # the last used ones last

    @functools.wraps(make)
    def remembered(config, *arguments):
        if not _is_shared:
            return make(config, *arguments)
        key = _made_from(config, arguments)
        entry = next((each for each in known if each[0] == key), None)
        if entry is None:
            entry = (key, make(config, *arguments), [])
        else:
            known.remove(entry)
        known.append(entry)
        _, made, learners = entry
        return _for_config(made, config, learners) if hasattr(made, "learner") else made

    return remembered


def _made_from(config, arguments):
    """Return all that programs depend on; of environments that is their spec, an argument."""
    import jax

    from sebulba.devices.mapping import is_jit_disabled

    actor, run = config.actor, config.run
    frames_kept_once = sys.modules["sebulba.ring.programs"]._frames_kept_once
    return (
        frames_kept_once,  # which `keep_observations` replaces
        *map(_comparable, arguments),
        (config.agent, config.learner, config.policy_lag, config.env.groups),
        (actor.threads_per_device, actor.num_envs, actor.trajectory_length),
        (actor.rollout, actor.cycle, actor.remote),
        (run.total_env_steps, run.return_window, run.episode_reducers),
        (run.repeatable, run.keep_memory),
        is_jit_disabled(),
        jax.config.jax_enable_x64,
    )


def _for_config(made, config, learners):
    """Return programs that a ring of the config may have.

    Those of several cycles, which a learner keeps, have a length that depends on when something is
    due: configs that differ in it share all programs but these.
    """
    due = (config.run, config.evaluation, config.checkpoint)
    learner = next((each for other, each in learners if other == due), None)
    if learner is None:
        learner = copy.copy(made.learner)
        learner.of_cycles = {}
        learners.append((due, learner))
    return dataclasses.replace(made, config=config, learner=learner)


def _comparable(argument):
    """Return the devices of roles, which are others at each call, or the argument."""
    of_all_hosts = getattr(argument, "learner_devices", None)
    if of_all_hosts is None:
        return argument
    return argument.actor, argument.learner, of_all_hosts.num_hosts
