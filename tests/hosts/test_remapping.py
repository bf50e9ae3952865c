"""What hosts take of the parts that another number of hosts saved."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.hosts.remapping import HostRemapping
from sebulba.ring.records import ActCarry
from sebulba.storage.shares import complete_steps
from sebulba.toolkit.exploration import ScheduledExploration
from sebulba.toolkit.schedules import Schedule
from tests.toys import toy_run_spec


def remappings(num_stored, num_hosts):
    return [
        HostRemapping(num_stored=num_stored, host=host, num_hosts=num_hosts)
        for host in range(num_hosts)
    ]


@pytest.mark.parametrize("num_stored", range(1, 6))
@pytest.mark.parametrize("num_hosts", range(1, 6))
def test_every_account_is_continued_once_and_every_host_has_a_source(num_stored, num_hosts):
    every = remappings(num_stored, num_hosts)
    assert sorted(host for each in every for host in each.accounts) == list(range(num_stored))
    sources = [each.source for each in every]
    assert set(sources) == set(range(min(num_stored, num_hosts)))
    counts = np.bincount(sources)
    assert counts.max() - counts.min() <= 1


def test_the_same_hosts_keep_what_they_have():
    for host, each in enumerate(remappings(3, 3)):
        assert (each.source, each.accounts, each.is_needed) == (host, [host], False)


def meta(learned, interrupted):
    finished = [{"episode_return": float(learned), "episode_length": learned}]
    return {
        "ledger": {"learned": [learned, learned + 1]},
        "progress": {"env_restarts": 1, "episodes_cut": interrupted, "env_steps": 99},
        "actors": {
            "boundaries": [
                {"finished": finished, "num_interrupted": interrupted + i} for i in (0, 1)
            ]
        },
    }


class StatelessAgent:
    """Has nothing that a schedule advances."""


def restored(metas):
    """Return the meta that a host restores which continues the accounts of some hosts."""
    remapping = HostRemapping(num_stored=len(metas), host=0, num_hosts=1)
    carry = ActCarry(actor_state=(), env_step=None, statistics=None)
    source = meta(99, 9) | {"learner": {"num_cycles": 3}}
    source["actors"] |= {"num_cycles": [5, 6]}
    arrays = {"learner": "as it is", "actors": [{}, {}]}
    arrays, result = remapping.applied_to(
        arrays, source, metas, agent=StatelessAgent(), carries=[carry, carry]
    )
    assert arrays == {"learner": "as it is", "actors": [{"actor_state": ()}] * 2}
    return result


def test_accounts_and_boundaries_are_summed():
    result = restored([meta(10, 2), meta(20, 5)])
    assert result["ledger"] == {"learned": [30, 32]}
    assert result["progress"] == {"env_restarts": 2, "episodes_cut": 7, "env_steps": 99}
    assert result["actors"]["num_cycles"] == [5, 6]
    boundaries = result["actors"]["boundaries"]
    assert [each["num_interrupted"] for each in boundaries] == [7, 9]
    assert boundaries[0]["lengths"] == [10, 20]


def test_a_host_without_an_account_starts_from_nothing():
    result = restored([])
    assert result["ledger"]["learned"] == [0, 0]
    assert [each["returns"] for each in result["actors"]["boundaries"]] == [[], []]


def test_a_checkpoint_is_complete_with_the_shares_of_its_own_hosts():
    # Steps 10 and 20 are of three hosts, and the third lacks 20; 30 is of two, 20 of other two.
    saved = {0: {10: 3, 20: 3, 30: 2}, 1: {10: 3, 20: 3, 30: 2}, 2: {10: 3}}
    assert complete_steps(saved) == {10: 3, 30: 2}
    # A share of an earlier run, which was not removed when fewer hosts went on.
    assert complete_steps({0: {20: 2}, 1: {20: 2}, 2: {20: 3}}) == {20: 2}
    assert complete_steps({0: {20: 3}, 1: {20: 2}, 2: {20: 3}}) == {}


@pytest.mark.parametrize("num_hosts", [1, 4])
def test_exploration_continues_its_schedule_on_other_hosts(num_hosts):
    run_spec = dataclasses.replace(toy_run_spec(), num_hosts=num_hosts, total_env_steps=3200)
    exploration = ScheduledExploration(
        run_spec, epsilon=Schedule(schedule="linear", start=1.0, end=0.0), evaluation_epsilon=0.0
    )
    new = exploration.init(run_spec.num_envs, jax.random.key(0), 0)
    assert jnp.allclose(exploration.epsilon(new), 1.0)
    assert jnp.allclose(exploration.epsilon(exploration.advance(new, 1600)), 0.5)
