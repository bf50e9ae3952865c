"""What hosts take of the shares that another number of hosts saved."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.run.dealing import Deal, join_boundaries, sum_accounts
from sebulba.storage.shares import complete_steps
from sebulba.toolkit.exploration import ScheduledExploration
from sebulba.toolkit.schedules import Schedule
from tests.toys import toy_run_spec


def deals(num_stored, num_hosts):
    return [
        Deal(num_stored=num_stored, host=host, num_hosts=num_hosts) for host in range(num_hosts)
    ]


@pytest.mark.parametrize("num_stored", range(1, 6))
@pytest.mark.parametrize("num_hosts", range(1, 6))
def test_every_account_is_continued_once_and_every_host_has_a_source(num_stored, num_hosts):
    dealt = deals(num_stored, num_hosts)
    assert sorted(host for deal in dealt for host in deal.accounts) == list(range(num_stored))
    sources = [deal.source for deal in dealt]
    assert set(sources) == set(range(min(num_stored, num_hosts)))
    counts = np.bincount(sources)
    assert counts.max() - counts.min() <= 1


def test_the_same_hosts_keep_what_they_have():
    for host, deal in enumerate(deals(3, 3)):
        assert (deal.source, deal.accounts, deal.is_new) == (host, [host], False)


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


def test_accounts_and_boundaries_are_summed():
    metas = [meta(10, 2), meta(20, 5)]
    assert sum_accounts(metas, 2) == {
        "learned": [30, 32],
        "counts": {"env_restarts": 2, "episodes_cut": 7},
    }
    boundaries = join_boundaries(metas, 2)
    assert [each.num_interrupted for each in boundaries] == [7, 9]
    assert [record.episode_length for record in boundaries[0].finished] == [10, 20]


def test_a_host_without_an_account_starts_from_nothing():
    assert sum_accounts([], 2)["learned"] == [0, 0]
    assert [each.finished for each in join_boundaries([], 2)] == [(), ()]


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
