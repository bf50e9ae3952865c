"""Remote actors: whatever happens to their processes, the bits are those of local actors."""

import contextlib
import dataclasses
import itertools
import pathlib
import platform
import signal

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.config.objects import with_agent, with_environment
from sebulba.config.validation import problems
from sebulba.envs.base import EnvironmentFault
from sebulba.envs.jax_tasks import Catch
from sebulba.errors import ConfigError
from sebulba.remote import collector, make
from sebulba.remote.collector import RemoteTimeout
from sebulba.remote.failures import RemoteError
from sebulba.ring.collectors import CollectorLost
from sebulba.ring.run_end import RunEnd, StoppedAtStart
from sebulba.ring.running import check_mode
from sebulba.storage.run_dir import describe_software, open_run_dir
from tests.remote.fakes import FakeProcesses, deaths, make_collector
from tests.remote.rings import CARTPOLE, CATCH, GYMNASIUM, make_config, make_remote
from tests.ring_parts import assert_equal_bits, published
from tests.rings import Closed, close, make_ring, run_ring

pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), pytest.mark.shares_programs]

STACKED = EnvConfig(suite="tests.envs.stacked:make", id="stacked", options={"lives": True})


class _Breaking(gymnasium.Env):
    """Raises in the seventh step of its first life."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    lives = 0

    def __init__(self):
        _Breaking.lives += 1
        self._life, self._steps = _Breaking.lives, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._steps += 1
        if self._life == 1 and self._steps == 7:
            raise ValueError("the arm is stuck")
        return np.zeros(3, np.float32), 1.0, False, False, {}


class _Clock(gymnasium.Env):
    """Depends on more than its seed and its actions."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    now = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        _Clock.now += 1
        return np.full(1, _Clock.now, np.float32), 1.0, False, False, {}


gymnasium.register("BreakingRemotely-v0", _Breaking)
gymnasium.register("ClockRemotely-v0", _Clock)


def networks_of_threads(config):
    """Return the networks of the same run with local actors."""
    actor = dataclasses.replace(config.actor, threads_per_device=2, remote=0)
    ring = make_ring(dataclasses.replace(config, actor=actor))
    run_ring(ring)
    return published(ring.learner)


KINDS = [
    pytest.param(CATCH, {}, id="jax"),
    pytest.param(CATCH, {"cycle": "stepped"}, id="jax stepped"),
    pytest.param(CARTPOLE, {"cycle": "stepped"}, id="envpool"),
    pytest.param(CARTPOLE, {"cycle": "stepped", "exact": 3}, id="envpool recreated"),
    pytest.param(CARTPOLE, {}, id="envpool fused", marks=pytest.mark.slow),
    pytest.param(GYMNASIUM, {"rollout": "episodes"}, id="episodes"),
    pytest.param(STACKED, {}, id="frame stacks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("env", "options"), KINDS)
def test_remote_actors_that_die_at_any_moment_give_the_bits_of_threads(env, options):
    config = make_config(env, **options)
    dies = deaths(
        {
            ("actor 0", 0): ["before"],
            ("actor 0", 2): ["after", "before"],
            ("actor 1", 2): ["replaced"],
            ("actor 1", 4): ["unheard", "after"],
            ("actor 0", 5): ["unheard"],
        }
    )
    warnings = []
    ring, _ = make_remote(config, dies, on_warning=warnings.append)
    run_ring(ring)
    assert_equal_bits(published(ring.learner), networks_of_threads(config))
    ring.ledger.balance()
    assert len([line for line in warnings if "lost in cycle" in line]) == 7
    assert not [line for line in warnings if "new episodes" in line]


@pytest.mark.parametrize("mode", ["threads", "serial"])
def test_local_and_remote_actors_together_give_the_bits_of_threads(mode):
    config = make_config(local=1, remote=1)
    ring, processes = make_remote(config)
    run_ring(ring, mode=mode)
    assert [process.name for process in processes.started] == ["actor 1"]
    assert_equal_bits(published(ring.learner), networks_of_threads(config))


def test_networks_cross_once_a_version_whatever_the_number_of_actors():
    shared = []
    for remote in (1, 8):
        config = make_config(remote=remote, lag=0)
        config = dataclasses.replace(
            config, learner=dataclasses.replace(config.learner, trajectories_per_cycle=remote)
        )
        ring, processes = make_remote(config)
        run_ring(ring, mode="serial")
        shared.append((processes.num_shared, ring.learner.num_cycles))
    # And once for the first points, which no version is published for.
    assert [num - cycles for num, cycles in shared] == [1, 1]


def test_processes_end_with_the_run():
    ring, processes = make_remote(make_config())
    run_ring(ring)
    assert [process.is_killed for process in processes.started] == [True, True]


def test_a_fault_of_a_remote_environment_is_that_of_a_local_one():
    _Breaking.lives = -1  # The first life is the one that the shapes are taken from.
    env = EnvConfig(suite="gymnasium", id="BreakingRemotely-v0")
    ring, _ = make_remote(make_config(env, remote=1, num_envs=1))
    with pytest.raises(EnvironmentFault, match="the arm is stuck") as error:
        run_ring(ring)
    notes = "\n".join(error.value.__notes__)
    assert "actor 0 on " in notes and "raise ValueError" in notes and "cycle 1" in notes
    ring.ledger.balance()


def test_a_fault_of_a_remote_environment_is_restarted_as_a_local_one():
    results = []
    for local, remote in ((1, 0), (0, 1)):
        _Breaking.lives = -1 if remote else 0
        env = EnvConfig(suite="gymnasium", id="BreakingRemotely-v0")
        config = make_config(
            env, local=local, remote=remote, num_envs=1, env_steps=50, on_env_error="restart"
        )
        infos = []
        ring = make_remote(config)[0] if remote else make_ring(config)
        run_ring(ring, mode="serial", on_cycle=infos.extend)
        results.append([(info.env_steps, info.env_restarts) for info in infos])
        assert ring.ledger.balance()
    assert results[0] == results[1]
    assert sum(restarts for _, restarts in results[0]) == 1


def test_environments_that_cannot_be_repeated_begin_new_episodes_and_say_so():
    env = EnvConfig(suite="gymnasium", id="ClockRemotely-v0")
    warnings, infos = [], []
    ring, _ = make_remote(
        make_config(env, remote=1, env_steps=100),
        deaths({("actor 0", 3): ["before"]}),
        on_warning=warnings.append,
    )
    run_ring(ring, on_cycle=infos.extend)
    assert len([line for line in warnings if "cycle 3: new episodes begin" in line]) == 1
    assert [info.episodes_cut for info in infos if info.sequence_number == 3] == [4]
    ring.ledger.balance()


def test_a_point_that_ends_every_process_ends_the_run():
    ring, _ = make_remote(
        make_config(remote=1), deaths({("actor 0", 2): itertools.repeat("before")})
    )
    with pytest.raises(CollectorLost, match=r"actor 0 on .*: it died before it acted") as error:
        run_ring(ring)
    assert "8 collectors in turn were lost at this point." in error.value.__notes__


def test_a_process_that_nobody_starts_again_ends_the_run():
    ring, _ = make_remote(make_config(remote=1), deaths({("actor 0", 2): ["gone"]}))
    with pytest.raises(RemoteError, match=r"actor 0 on .*: no process will act again: Ray is told"):
        run_ring(ring)


def test_a_machine_with_another_kind_of_cpu_is_named_where_bits_are_promised(monkeypatch):
    other = {"model": "Z80", "features": ""}
    monkeypatch.setattr(collector, "describe_cpu", lambda: other)
    for lag, expected in ((1, 1), (None, 0)):
        warnings = []
        ring, _ = make_remote(make_config(lag=lag), on_warning=warnings.append)
        close(ring)
        lines = [
            line for line in warnings if "differs from that of the learner's host, Z80" in line
        ]
        assert len(lines) == expected  # once for a machine


def test_a_process_that_does_not_answer_in_time_ends_the_run(monkeypatch):
    monkeypatch.setattr(collector, "_POLL_S", 0.0)
    config = make_config(remote=1, remote_timeout_s=1.0)
    ring, _ = make_remote(config, deaths({("actor 0", 1): itertools.repeat("hangs")}))
    now = itertools.count()
    monkeypatch.setattr(collector.time, "monotonic", lambda: float(next(now)))
    with pytest.raises(RemoteTimeout, match=r"actor 0 on .*: expected an answer within 1 s"):
        run_ring(ring, mode="serial")


def test_a_free_running_run_goes_on_without_an_actor_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(collector, "_POLL_S", 0.0)
    now = itertools.count()
    monkeypatch.setattr(collector.time, "monotonic", lambda: float(next(now)))
    config = make_config(remote=2, lag=None, remote_timeout_s=1.0)
    warnings = []

    def dies(name, method, arguments):
        """Actor 1 never answers after its first cycle; actor 0 does once that has been noticed."""
        cycle = arguments[1]["cycle"] if method == "collect" else 0
        is_noticed = any("actor 1 on" in line for line in warnings)
        return "hangs" if cycle and (name == "actor 1" or not is_noticed) else None

    ring, _ = make_remote(config, dies, on_warning=warnings.append)
    run_ring(ring)
    assert ring.progress.env_steps >= 300
    late = [line for line in warnings if line.startswith("actor 1 on")]
    assert len(late) == 1 and late[0].endswith("The run continues without it")
    assert ring.ledger.balance()[1]["acted"] <= 20  # its first cycle


def test_a_wait_for_a_process_ends_with_the_run():
    ring, _ = make_remote(
        make_config(remote=1), deaths({("actor 0", 0): itertools.repeat("hangs")})
    )
    actor = ring.actors[0]
    actor.collector.interrupt()
    with pytest.raises(Closed):
        actor.collector.collect(ring.learner.networks_on(actor.device), actor.point)
    close(ring)


@pytest.mark.parametrize("how", ["hangs", "before"])
def test_a_signal_ends_the_wait_for_the_first_processes(how, monkeypatch):
    monkeypatch.setattr(collector, "_POLL_S", 0.0)
    config, end, asked = make_config(), RunEnd(), []

    def dies(name, method, arguments):
        """Actor 0 starts; actor 1 waits for a machine, or its process dies again and again."""
        asked.append(name)
        if asked.count("actor 1") == 3:
            end.receive(signal.SIGTERM, None)
        return how if name == "actor 1" and method == "set_up" else None

    processes = FakeProcesses(dies)
    making = make_collector(config, processes, check=end.raise_if_received)
    with pytest.raises(StoppedAtStart, match="stopped by SIGTERM before") as stopped:
        make_ring(config, make_collector=making)
    assert stopped.value.number == signal.SIGTERM
    assert asked.count("actor 1") == 3
    assert [process.is_killed for process in processes.started] == [True, True]


def test_a_process_with_other_versions_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(
        make, "describe_software", lambda config: {"the version of jaxlib": "0.0.1"}
    )
    expected = r"actor 0 on .*: expected the version of jaxlib of the learner's host, 0\.0\.1, got"
    with pytest.raises(ConfigError, match=expected):
        make_remote(make_config())


def test_a_process_whose_jax_draws_other_numbers_is_refused_by_name(monkeypatch):
    def of_other_host(config):
        jax.config.update("jax_threefry_partitionable", False)
        try:
            return describe_software(config)
        finally:
            jax.config.update("jax_threefry_partitionable", True)

    monkeypatch.setattr(make, "describe_software", of_other_host)
    expected = "the setting jax_threefry_partitionable of the learner's host, False, got True"
    with pytest.raises(ConfigError, match=expected):
        make_remote(make_config())


def test_an_error_of_the_process_has_its_traceback():
    def dies(name, method, arguments):
        if method == "collect":
            arguments[1]["cycle"] = None  # No cycle of a point.

    ring, _ = make_remote(make_config(remote=1), dies)
    with pytest.raises(RemoteError, match=r"actor 0 on .*: TypeError") as error:
        run_ring(ring)
    assert "Traceback" in "\n".join(error.value.__notes__)


def test_one_program_refuses_remote_actors_by_name():
    ring, _ = make_remote(make_config(remote=1))
    with pytest.raises(ConfigError, match=r"needs actor.remote: 0, got 1"):
        check_mode(ring, "anakin")
    close(ring)


@pytest.mark.parametrize("environment", [Catch(rows=7), lambda: _Clock()])
def test_an_environment_that_a_process_would_not_import_by_its_name_is_refused(environment):
    """Of a task with arguments, the name would silently give one without."""
    config = with_environment(make_config(), environment)
    with pytest.raises(ConfigError, match="environment: expected no object with"):
        make_collector(config, FakeProcesses())


def test_an_agent_that_a_process_would_not_import_by_its_name_is_refused():
    config = make_config()
    config = with_agent(config, lambda settings, run_spec: None)
    with pytest.raises(ConfigError, match="agent: expected no object with"):
        make_collector(config, FakeProcesses())


@pytest.mark.parametrize("environment", [Catch, _Clock])
def test_classes_of_a_module_are_imported_by_their_names(environment):
    config = with_environment(make_config(), environment)
    make_collector(config, FakeProcesses())


def test_a_run_needs_an_actor():
    config = make_config(local=0, remote=0)
    assert [key for key, _ in problems(config)] == ["actor.threads_per_device"]


def test_a_store_that_is_too_small_is_refused_before_the_start():
    config, processes = make_config(), FakeProcesses()
    processes.num_store_bytes = 10_000
    with pytest.raises(ConfigError, match=r"object store of \d+ MB, for 6 trajectories .* 0 MB"):
        make_ring(config, make_collector=make_collector(config, processes))


def test_a_run_resumes_with_other_actors_remote(tmp_path):
    config = dataclasses.replace(make_config(local=2, remote=0), run_dir=str(tmp_path))
    mixed = dataclasses.replace(config.actor, threads_per_device=1, remote=1)
    more = dataclasses.replace(config.actor, threads_per_device=2, remote=1)
    assert resume_problem(config, config.actor) is None
    assert resume_problem(config, mixed) is None
    assert "actor.remote (there 0, now 1)" in str(resume_problem(config, more))


def resume_problem(config, actor):
    """Return why a run does not resume with other settings of its actors; None: it does."""
    lock = None
    try:
        if not (pathlib.Path(config.run_dir) / "config.yaml").exists():
            _, lock = open_run_dir(config, on_message=print)
            lock.release()
        resumed = dataclasses.replace(config, actor=actor, resume="latest")
        _, lock = open_run_dir(resumed, on_message=print)
    except ConfigError as error:
        return error
    finally:
        if lock is not None:
            lock.release()
    return None


def test_the_actions_of_a_stream_cross_only_to_a_process_that_has_to_repeat_them():
    sent = []

    def dies(name, method, arguments):
        if method == "collect":
            sent.append(None if arguments[3] is None else len(arguments[3]))
            return "after" if len(sent) == 5 else None

    ring, _ = make_remote(make_config(CARTPOLE, remote=1, env_steps=140, cycle="stepped"), dies)
    run_ring(ring)
    assert sent[1:7] == [None, None, None, None, 4, None]


class _Clinging(_Clock):
    """Does not close."""

    def close(self):
        raise OSError("the window is still open")


gymnasium.register("ClingingRemotely-v0", _Clinging)


def test_a_warning_of_a_process_in_a_later_cycle_comes_to_the_learner():
    env = EnvConfig(suite="gymnasium", id="ClingingRemotely-v0")
    warnings = []
    config = make_config(env, remote=1, num_envs=1, env_steps=40, exact=2)
    ring, _ = make_remote(config, on_warning=warnings.append)
    warnings.clear()
    with contextlib.suppress(OSError):
        run_ring(ring, mode="serial")
    of_actor = [line for line in warnings if line.startswith("actor 0: ")]
    assert len(of_actor) == 1 and "the window is still open" in of_actor[0]  # equal lines once


def test_rows_show_each_remote_actor_and_count_the_processes_that_replaced_another():
    config = make_config(local=1, remote=2, env_steps=600)
    sizes = []

    def dies(name, method, arguments):
        if method == "collect" and name == "actor 1":
            sizes.append(sum(each.nbytes for each in arguments[2]))
        return of_plan(name, method, arguments)

    of_plan = deaths({("actor 1", 4): ["before", "after"], ("actor 2", 6): ["unheard"]})
    ring, _ = make_remote(config, dies)
    rows = run_ring(ring, mode="serial")
    keys = {key.split("/")[1] for row in rows for key in row if key.startswith("remote_actor/")}
    assert keys == {"1", "2"}
    last = of_actors(rows[-1])
    assert [last[each]["restarts"] for each in ("1", "2")] == [2, 0]
    assert last["1"]["machine"] == platform.node()
    assert sum(of_actors(row)["1"]["bytes_sent"] for row in rows) <= sum(sizes)
    for row in rows[1:]:
        learned = sum(each["env_steps"] for each in of_actors(row).values())
        assert 0 < learned < row["env_steps"]  # The rest is the local actor's.
        for each in of_actors(row).values():
            assert each["steps_per_second"] > 0 and 0 <= each["waits"] <= 1
            assert each["bytes_sent"] > 0 and each["bytes_received"] > 0
            assert each["process_cpu_s"] >= 0 and each["thread_cpu_s"] > 0


def of_actors(row):
    """Return the numbers of a row's remote actors, by actor and name."""
    actors = {}
    for key, value in row.items():
        if key.startswith("remote_actor/"):
            _, actor, name = key.split("/")
            actors.setdefault(actor, {})[name] = value
    return actors


def test_rows_without_remote_actors_have_no_column_of_them():
    ring = make_ring(make_config(local=2, remote=0))
    rows = run_ring(ring, mode="serial")
    assert [of_actors(row) for row in rows] == [{}] * len(rows)
