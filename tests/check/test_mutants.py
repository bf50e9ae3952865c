"""Mutants of the shipped agents: operators change code, and the check finds a sample of them."""

import pytest

from tests.check import mutants
from tests.subprocesses import run_python


@pytest.mark.slow
def test_every_operator_makes_mutants_of_the_shipped_agents():
    every = list(mutants.mutants(list(mutants.AGENTS_OF)))
    assert len(every) >= 60
    assert {each.operator for each in every} == set(mutants.OPERATORS)
    assert {each.module for each in every} == set(mutants.AGENTS_OF)


_MUTATE = """
import ast, gc
import jax
from sebulba_agents import ppo
from tests.check import mutants, mutation

gc.freeze()  # as after the collection of tests that import it
source = (mutants.SOURCE / "ppo.py").read_text()
other = ast.parse(source.replace("jnp.minimum(ratios", "jnp.maximum(ratios"))
compiled = jax.jit(ppo.clipped_surrogate)
results = [[ppo.clipped_surrogate(2.0, 1.0, 0.2), compiled(2.0, 1.0, 0.2)]]
with mutation.mutated("sebulba_agents.ppo", other):
    results.append([ppo.clipped_surrogate(2.0, 1.0, 0.2), compiled(2.0, 1.0, 0.2)])
results.append([ppo.clipped_surrogate(2.0, 1.0, 0.2), compiled(2.0, 1.0, 0.2)])
print([[round(float(each), 3) for each in pair] for pair in results])
"""


def test_a_mutated_function_computes_otherwise_until_the_end():
    # In a process of its own: it clears all that JAX has compiled, and later tests need it.
    process = run_python("-c", _MUTATE)
    assert process.stdout.strip() == "[[1.2, 1.2], [2.0, 2.0], [1.2, 1.2]]", process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "before", "check"),
    [
        ("impala", "-log_probs", "preference"),
        ("impala", "-reduce(entropies, valid)", "entropy"),
        ("actor_critic", "env_steps.terminated", "termination"),
        ("sac", "jax.lax.stop_gradient(online.critics)", "values"),
    ],
)
def test_a_mutant_is_found(module, before, check):
    (mutant,) = [
        each
        for each in mutants.mutants([module])
        if each.before == before
        and each.operator in ("sign flipped", "leaf swapped", "stop_gradient removed")
    ]
    (row,) = mutants.examine_all([mutant], None)
    assert (row["kind"], row["check"]) == ("found", check)
