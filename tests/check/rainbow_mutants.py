"""Plausible mistakes in Rainbow's parts: one expression of a module replaced."""

import ast
import contextlib
import dataclasses
import importlib
import pathlib

from sebulba_agents.replay_config import RainbowConfig
from tests.check.mutation import mutated

RAINBOW = RainbowConfig(
    hidden_sizes=(8,),
    dueling_size=8,
    num_atoms=21,
    value_min=-4.0,
    value_max=4.0,
    batch_size=16,
    replay_ratio=8.0,
    replay_capacity=800,
    min_replay_rows=120,
    target_period=2,
    importance_exponent=0.4,  # `importance` skips a schedule
)
QUANTILES = dataclasses.replace(RAINBOW, distribution="quantile", num_atoms=8)
SOUND = {
    "categorical": RAINBOW,
    "quantile": QUANTILES,
    "mean": dataclasses.replace(RAINBOW, distribution=None),
    "epsilon": dataclasses.replace(RAINBOW, noisy_sigma=None, epsilon=0.2),
    "uniform": dataclasses.replace(RAINBOW, priority_exponent=0.0, n_step=1),
    "one head": dataclasses.replace(RAINBOW, dueling_size=None),
    "not double": dataclasses.replace(RAINBOW, double=False),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """A replaced expression, and the question that finds it."""

    module: str
    before: str
    after: str
    question: str | None  # None: no question finds it
    agent: RainbowConfig = RAINBOW
    is_masked: bool = False  # on a task with masks of legal actions


_RETURNS, _DDQN = "sebulba_agents.value_distributions", "sebulba_agents.ddqn"
_NOISE = "sebulba.toolkit.noisy_dense"
MISTAKES = {
    "greedy actions are noisy": Mistake(
        module=_DDQN,
        before="None if greedy else stream(",
        after="stream(",
        question="greedy",
    ),
    "all environments share the noise": Mistake(
        module=_NOISE,
        before="jax.random.normal(key, shape)",
        after="jnp.broadcast_to(jax.random.normal(key, shape[-1:])[None], shape)",
        question=None,  # `env-keys` is unclear: the noise of weights may be that of all
    ),
    "the noise of acting never changes": Mistake(
        module=_DDQN,
        before='stream(actor_state.key, "noise")',
        after='stream(jax.random.key(0), "noise")',
        question="step-keys",
    ),
    "learning has no noise": Mistake(
        module=_DDQN,
        before='batch, stream(key, "noise"))',
        after="batch)",
        question="updates",
    ),
    "the discount multiplies the rewards": Mistake(
        module=_RETURNS,
        before="batch.reward[:, None] + batch.discount[:, None] * self.support[None]",
        after="batch.discount[:, None] * (batch.reward[:, None] + self.support[None])",
        question="rewards",
    ),
    "a termination does not end the return": Mistake(
        module=_RETURNS,
        before="batch.reward[:, None] + batch.discount[:, None] * self.support[None]",
        after="batch.reward[:, None] + self.support[None]",
        question="termination",
    ),
    "returns beyond the support lose their probability": Mistake(
        module=_RETURNS,
        before="(jnp.clip(returns, self.least, self.greatest) - self.least)",
        after="(returns - self.least)",
        question="symmetry",
    ),
    "the support is upside down": Mistake(
        module=_RETURNS,
        before="jax.nn.softmax(logits) @ self.support",
        after="jax.nn.softmax(logits) @ self.support[::-1]",
        question="preference",
    ),
    "the cross entropy has the wrong sign": Mistake(
        module=_RETURNS,
        before="-jnp.sum(weights * ",
        after="jnp.sum(weights * ",
        question="preference",
    ),
    "priorities are the same for all": Mistake(
        module=_RETURNS,
        before="return cross_entropy, cross_entropy",
        after="return cross_entropy, jnp.ones_like(cross_entropy)",
        question="priorities",
    ),
    "priorities are those of other transitions": Mistake(
        module=_RETURNS,
        before="return cross_entropy, cross_entropy",
        after="return cross_entropy, cross_entropy[::-1]",
        question="priorities",
    ),
    "quantiles regress to their own targets only": Mistake(
        module=_RETURNS,
        before="targets[:, None, :] - q_tm1[:, :, None]",
        after="targets[:, :, None] - q_tm1[:, :, None]",
        question=None,
        agent=QUANTILES,
    ),
    "importance weights are left out": Mistake(
        module=_DDQN,
        before="mean_share(batch.weight * losses,",
        after="mean_share(losses,",
        question="importance",
    ),
    "illegal actions are bootstrapped from": Mistake(
        module=_DDQN,
        before="greedy_action(self._values(chosen_by), batch.next_action_mask)",
        after="greedy_action(self._values(chosen_by), None)",
        question="legal",
        is_masked=True,
    ),
    "the online network bootstraps": Mistake(
        module=_DDQN,
        before="q_t = delayed[",
        after="q_t = chosen_by[",
        question="updates",
    ),
}


@contextlib.contextmanager
def planted(mistake: Mistake):
    """Give the functions of the mistake's module the mistaken code."""
    path = importlib.import_module(mistake.module).__file__
    assert path is not None
    source = pathlib.Path(path).read_text()
    assert source.count(mistake.before) == 1, "the module has changed: write its mistake again"
    with mutated(mistake.module, ast.parse(source.replace(mistake.before, mistake.after))):
        yield
