"""Remote actors for which there is a machine only later, or never."""

import dataclasses
import itertools
import json

import jax.numpy as jnp
import pytest

from sebulba.pytree import pytree_dataclass
from sebulba.remote import collector
from sebulba.remote.collector import RemoteTimeout
from sebulba.ring.state import restore, state_of
from tests.remote.rings import CARTPOLE, CATCH, GYMNASIUM, make_config, make_remote
from tests.ring_parts import assert_equal_bits
from tests.rings import act, close, make_ring, run_ring, stop
from tests.toys import ToyAgent, ToyConfig, ToyState

pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), pytest.mark.shares_programs]


@pytree_dataclass
class CountingState(ToyState):
    """Counts the run's env steps too, since the actor began."""

    env_steps: jnp.ndarray = None  # [B] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingConfig(ToyConfig):
    """Settings of the agent below."""

    name: str = "tests.remote.test_joining:CountingAgent"
    """Which agent."""


class CountingAgent(ToyAgent):
    """Knows how many env steps the run had taken when its actor began."""

    Config = CountingConfig

    def init_actor_state(self, *args):
        state = super().init_actor_state(*args)
        return CountingState(
            key=state.key, count=state.count, env_steps=jnp.zeros_like(state.count)
        )

    def advance_actor_state(self, actor_state, env_steps):
        steps = jnp.full_like(actor_state.env_steps, env_steps)
        return dataclasses.replace(actor_state, env_steps=steps)

    def act(self, networks, actor_state, env_step, *, greedy):
        action, extras, after = super().act(networks, actor_state, env_step, greedy=greedy)
        after = CountingState(key=after.key, count=after.count, env_steps=actor_state.env_steps)
        return action, extras, after


class Later:
    """Lets actor 1 start after five learner cycles, and the run end only after it has acted."""

    def __init__(self):
        self.infos = []

    def dies(self, name, method, arguments):
        """See `FakeProcesses`."""
        of_actor = [info for info in self.infos if info.actor_id == 1]
        if name == "actor 1":
            is_early = method == "set_up" and len(self.infos) < 5
        else:
            is_early = method == "collect" and arguments[1]["cycle"] >= 10 and not of_actor
        return "hangs" if is_early else None


@pytest.mark.parametrize("env", [CATCH, CARTPOLE, GYMNASIUM], ids=["jax", "envpool", "gymnasium"])
def test_a_free_running_run_begins_with_the_actors_that_are_there_and_others_join(env, monkeypatch):
    monkeypatch.setattr(collector, "_SILENT_S", 0.0)
    later, warnings = Later(), []
    config = make_config(env, lag=None, env_steps=400, cycle="stepped")
    ring, _ = make_remote(config, later.dies, on_warning=warnings.append)
    rows = run_ring(ring, on_cycle=later.infos.extend, interval=40)
    first = next(info for info in later.infos if info.actor_id == 1)
    assert first.sequence_number == 0
    assert first.policy_version >= 5  # not those of the beginning, when it was asked for
    assert first.episodes_cut == 0
    assert sum(account["learned"] for account in ring.ledger.balance()) == ring.progress.env_steps
    awaited = [line for line in warnings if "no process yet" in line]
    assert len(awaited) == 1 and "actor 1: it starts slowly" in awaited[0]
    joins = [line for line in warnings if "actor 1 on " in line and "joins the run" in line]
    assert len(joins) == 1
    of_actor = [(row["remote_actor/1/machine"], row["remote_actor/1/env_steps"]) for row in rows]
    assert of_actor[0] == (None, 0)
    assert of_actor[-1][0] is not None and of_actor[-1][1] > 0
    json.dumps(rows)


@pytest.mark.parametrize("env", [CATCH, GYMNASIUM], ids=["jax", "gymnasium"])
def test_an_actor_that_joins_acts_what_a_thread_would(env):
    config = make_config(env, lag=None)
    ring, _ = make_remote(config)
    threads = make_ring(
        dataclasses.replace(
            config, actor=dataclasses.replace(config.actor, threads_per_device=2, remote=0)
        )
    )
    for actor_id in (0, 1):
        for _ in range(2):
            of_remote, of_thread = act(ring, actor_id), act(threads, actor_id)
            assert_equal_bits(of_remote.unroll, of_thread.unroll)
    close(ring)
    close(threads)


def test_local_actors_begin_while_no_remote_one_has_a_machine(monkeypatch):
    monkeypatch.setattr(collector, "_SILENT_S", 0.0)
    warnings = []

    def dies(name, method, arguments):
        return "hangs" if method == "set_up" else None

    ring, processes = make_remote(
        make_config(lag=None, local=1, remote=2), dies, on_warning=warnings.append
    )
    rows = run_ring(ring)
    assert ring.progress.env_steps >= 300 and rows
    assert ring.progress.steps_per_second is not None  # Who never came has not kept it in start-up.
    assert [account["acted"] for account in ring.ledger.balance()][1:] == [0, 0]
    assert all(process.is_killed for process in processes.started)
    assert [line.split(":")[0] for line in warnings] == ["no process yet for actor 1, actor 2"]
    assert warnings[0].endswith(
        "The run continues without them, and they join when they have started"
    )


def test_an_actor_that_joins_counts_the_env_steps_of_the_run():
    later = Later()
    config = dataclasses.replace(make_config(lag=None, env_steps=400), agent=CountingConfig())
    ring, _ = make_remote(config, later.dies)
    run_ring(ring, on_cycle=later.infos.extend)
    counted = [int(point.carry.actor_state.env_steps[0]) for point in ring.points]
    assert counted[0] < sum(info.env_steps for info in later.infos[:5]) <= counted[1]


def test_a_process_that_replaces_another_late_acts_with_the_newest_networks():
    infos = []

    def dies(name, method, arguments):
        """The process of actor 0 dies in its third cycle; the next starts 8 learner cycles later.

        Actor 1 waits in its sixth cycle for that death, so that it has 8 cycles left, and before
        the end until actor 0 has acted the cycle.
        """
        nonlocal at
        cycle = arguments[1]["cycle"] if method == "collect" else None
        if name == "actor 0" and cycle == 2 and at is None:
            at = len(infos)
            return "before"
        if name == "actor 0" and method == "set_up" and at is not None:
            return "hangs" if len(infos) < at + 8 else None
        is_done = any(info.actor_id == 0 and info.sequence_number == 2 for info in infos)
        is_early = (cycle == 5 and at is None) or (cycle == 14 and not is_done)
        return "hangs" if name == "actor 1" and is_early else None

    at = None
    ring, _ = make_remote(make_config(lag=None, env_steps=500), dies)
    run_ring(ring, on_cycle=infos.extend)
    versions = [
        info.policy_version for info in infos if info.actor_id == 0 and info.sequence_number == 2
    ]
    assert len(versions) == 1 and versions[0] >= at + 8


def never(name, method, arguments):
    """Lets actor 1 never start."""
    return "hangs" if name == "actor 1" and method == "set_up" else None


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(CATCH, id="jax"),
        pytest.param(GYMNASIUM, id="gymnasium", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("then", ["remote", "threads"])
def test_a_place_that_never_acted_is_saved_and_resumed(env, then):
    config = make_config(env, lag=None, env_steps=100, cycle="stepped")
    ring, _ = make_remote(config, never)
    run_ring(ring)
    arrays, meta = state_of(ring)
    meta = json.loads(json.dumps(meta))
    assert meta["actors"]["num_cycles"][1] == 0 and meta["ledger"]["learned"][1] == 0

    config = make_config(env, lag=None, env_steps=1_000, cycle="stepped")
    if then == "threads":
        actor = dataclasses.replace(config.actor, threads_per_device=2, remote=0)
        resumed, new = (make_ring(dataclasses.replace(config, actor=actor)) for _ in range(2))
        restore(resumed, arrays, meta)
        assert_equal_bits(resumed.actors[1].point.carry, new.actors[1].point.carry)
        close(new)
    else:
        resumed, _ = make_remote(config)
        restore(resumed, arrays, meta)
    infos = []
    run_ring(resumed, on_cycle=infos.extend)
    assert [info.sequence_number for info in infos if info.actor_id == 1][:2] == [0, 1]
    resumed.ledger.balance()


def test_a_run_in_which_nobody_ever_acts_ends(monkeypatch):
    monkeypatch.setattr(collector, "_POLL_S", 0.0)
    now = itertools.count()
    monkeypatch.setattr(collector.time, "monotonic", lambda: float(next(now)))
    warnings = []
    ring, _ = make_remote(
        make_config(lag=None, remote_timeout_s=30.0),
        lambda name, method, arguments: "hangs",
        on_warning=warnings.append,
    )
    with pytest.raises(RemoteTimeout, match=r"actor \d: expected an answer within 30 s"):
        run_ring(ring)
    assert warnings[0].startswith("no process yet for actor 0, actor 1: ")
    assert warnings[0].endswith("The run begins when one of them has started")


@pytest.mark.parametrize("mode", ["lag", "serial"])
def test_an_exact_run_says_for_whom_it_waits_and_ends(mode, monkeypatch):
    monkeypatch.setattr(collector, "_POLL_S", 0.0)
    now = itertools.count()
    monkeypatch.setattr(collector.time, "monotonic", lambda: float(next(now)))
    warnings = []
    config = make_config(lag=1 if mode == "lag" else None, remote_timeout_s=30.0)
    config = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, mode="serial" if mode == "serial" else "threads"),
    )
    with pytest.raises(RemoteTimeout, match="actor 1: expected an answer within 30 s"):
        make_remote(config, never, on_warning=warnings.append)
    assert [line.split(":")[0] for line in warnings] == ["no process yet for actor 1"]
    assert warnings[0].endswith("The run waits for it, at most 30 s (actor.remote_timeout_s)")


def test_processes_that_die_before_they_can_act_are_said_once_where_others_act(monkeypatch):
    monkeypatch.setattr(collector, "_POLL_S", 0.0)
    now = itertools.count()
    monkeypatch.setattr(collector.time, "monotonic", lambda: float(next(now)))
    warnings = []

    def said():
        return [line for line in warnings if "processes in turn died" in line]

    config = make_config(lag=None, local=1, remote=1, env_steps=10**9, remote_timeout_s=5.0)
    ring, _ = make_remote(
        config,
        lambda name, method, arguments: "before",
        on_warning=warnings.append,
    )
    run_ring(ring, on_cycle=lambda infos: stop(ring) if said() else None)
    assert len(said()) == 1 and said()[0].endswith("The run continues without it")
