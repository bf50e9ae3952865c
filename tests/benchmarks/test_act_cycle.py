"""All variants of the act-cycle benchmark give the same trajectories."""

import dataclasses

import jax
import pytest

from benchmarks import act_cycle
from benchmarks.policy_gradient import PolicyGradientConfig


def make_bench(name, *, length=6, num_cycles=1, hidden_sizes=(8,)):
    workload = dataclasses.replace(
        act_cycle.WORKLOADS[name],
        agent=PolicyGradientConfig(hidden_sizes=hidden_sizes),
        length=length,
        num_cycles=num_cycles,
    )
    return act_cycle.Bench(workload)


@pytest.mark.parametrize(
    "name",
    [
        "envpool",
        pytest.param("zero", marks=pytest.mark.slow),
        pytest.param("gymnasium-sync", marks=pytest.mark.slow),
        pytest.param("gymnasium-async", marks=pytest.mark.slow),
    ],
)
def test_all_variants_give_identical_trajectories(name):
    act_cycle.check_identical(make_bench(name))


def test_a_variant_with_other_trajectories_is_found(monkeypatch):
    bench = make_bench("zero")
    monkeypatch.setattr(
        bench,
        "make_cycle",
        lambda variant, *args, make=bench.make_cycle: (
            make(variant, *args) if variant != "fused" else _with_another_key(*make(variant, *args))
        ),
    )
    with pytest.raises(AssertionError):
        act_cycle.check_identical(bench)


def _with_another_key(cycle, carry):
    key = jax.random.key(99)
    return cycle, type(carry)(
        actor_state=type(carry.actor_state)(key=key),
        env_step=carry.env_step,
        statistics=carry.statistics,
    )


@pytest.mark.slow
def test_measure_has_every_variant_and_its_limits():
    result = act_cycle.measure(make_bench("zero"), threads=[2], repeats=2)
    variants = ("eager", "stepped", "fused")
    expected = {f"{variant}, 1 thread" for variant in variants}
    expected |= {"stepped, 2 threads", "fused, 2 threads"}
    assert expected <= set(result.rates)
    assert {"stepped serial limit", "fused serial limit"} <= set(result.rates)
    assert all(len(series.values) == 2 for series in result.rates.values())
    assert {"fused, 1 thread / serial limit", "fused, 2 threads / 1"} <= set(result.ratios)
    assert set(result.microseconds) == {"a vector step of stepped beyond its serial limit"}


def test_the_agent_has_the_documented_number_of_parameters():
    bench = act_cycle.Bench(act_cycle.WORKLOADS["zero"])
    assert sum(leaf.size for leaf in jax.tree.leaves(bench.networks)) == 162_202
