"""The contract of a recurrent core of the user's, checked when a run starts."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from sebulba.agent_check import validate_agent
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.toolkit.cores import core_settings
from tests.on_policy import make_run_spec

HERE = "tests.toolkit.test_cores"


class Sum(nn.Module):
    """Remembers the sum of its inputs; subclasses break one rule each."""

    size: int

    @nn.compact
    def __call__(self, inputs, is_first, state):
        inputs = nn.Dense(self.size)(inputs)
        kept = jnp.where(is_first[0, :, None], 0.0, state)
        sums = kept[None] + jnp.cumsum(inputs, axis=0)
        return self.returned(sums)

    def returned(self, sums):
        return sums, sums[-1]

    def initial_state(self, batch_size):
        return jnp.zeros((batch_size, self.size))


class LastOnly(Sum):
    def returned(self, sums):
        return sums[-1], sums[-1]


class OutputsOnly(Sum):
    def returned(self, sums):
        return sums


class AllStates(Sum):
    def returned(self, sums):
        return sums, sums


class Raises(Sum):
    def returned(self, sums):
        return sums @ sums, sums[-1]


class OneState(Sum):
    def initial_state(self, batch_size):
        return jnp.zeros(self.size)


class Unsized(nn.Module):
    """Has another field and no initial state."""

    width: int = 3

    @nn.compact
    def __call__(self, inputs, is_first, state):
        return inputs, state


class NoModule:
    """Is no flax module."""

    def __init__(self, size):
        self.size = size


def validate(core, name="ppo", **settings):
    settings = {"lstm_size": 5, "core": core, **settings}
    run_spec = make_run_spec()
    agent = agent_factory(name)(agent_config_class(name)(**settings), run_spec)
    validate_agent(agent, run_spec)
    return agent


@pytest.mark.parametrize("name", ["ppo", "r2d2"])
def test_a_core_of_the_contract_is_used(name):
    extra = {"min_replay_rows": 1000} if name == "r2d2" else {"num_minibatches": 2}
    agent = validate(f"{HERE}:Sum", name, **extra)
    networks = jax.eval_shape(agent.init_networks, jax.eval_shape(lambda: jax.random.key(0)))
    paths = [jax.tree_util.keystr(x) for x, _ in jax.tree_util.tree_leaves_with_path(networks)]
    assert any("core" in path or "Sum" in path for path in paths)


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (
            "LastOnly",
            r"to return outputs \[T, B, F\], got float32\[1,5\]; .* inputs: float32\[1,1,",
        ),
        ("OutputsOnly", r"to return a pair, outputs and state, got .*float32\[1,1,5\]"),
        (
            "AllStates",
            r"to return a state like the one before it, got float32\[1,1,5\]; .* state: fl",
        ),
        ("Raises", r"Raises raised TypeError: .* \(test_cores\.py:\d+: return sums @ sums, sums"),
        ("OneState", r"initial_state\(1\) with leaves \[1, \.\.\.\], got float32\[5\]"),
        ("Unsized", r"has no field `size: int` and no method `initial_state\(batch_size\)`"),
        ("NoModule", r"to be a subclass of flax.linen.Module, got <class"),
        ("Sums", r"has no Sums; did you mean Sum"),
    ],
)
def test_a_core_that_breaks_the_contract_is_refused_by_name(core, message):
    with pytest.raises(ConfigError, match=rf"^agent\.core: .*{message}") as caught:
        validate(f"{HERE}:{core}", num_minibatches=2)
    assert not getattr(caught.value, "__notes__", []), "those of JAX would be the last lines"


@pytest.mark.parametrize("core", ["gru", "gtrxl", f"{HERE}:Sum"])
def test_a_core_without_a_size_is_not_ignored(core):
    with pytest.raises(ConfigError, match=rf"agent\.core: {core} needs a size.* agent\.lstm_size"):
        validate(core, lstm_size=None)


class Decaying(Sum):
    """Has options of its own."""

    decay: float = 0.5
    words: tuple = ()


@pytest.mark.parametrize(
    ("core", "options", "message"),
    [
        ("gtrxl", {"memory": 4}, r"memory: gtrxl has no such option; did you mean memory_length\?"),
        ("lstm", {"heads": 4}, r"heads: lstm has no such option; lstm has no options"),
        ("gtrxl", {"heads": 0}, r"heads: expected int ≥ 1, got 0"),
        ("gtrxl", {"heads": 2.5}, r"heads: expected int ≥ 1, got 2\.5"),
        ("gtrxl", {"heads": True}, r"heads: expected int ≥ 1, got True"),
        ("gtrxl", {"heads": 3}, r"heads: expected a divisor of agent\.lstm_size 5, got 3"),
        ("lru", {"r_max": 1.0}, r"r_max: expected float in \[0, 1\), got 1\.0"),
        ("lru", {"r_min": 0.9999}, r"r_min: expected at most r_max 0\.999, got 0\.9999"),
        ("lru", {"unroll": "scan"}, r"unroll: expected auto \| rows \| associative, got 'scan'"),
        ("lru", {"max_phase": "a"}, r"max_phase: expected float .*, got 'a'"),
        (f"{HERE}:Decaying", {"decay": "slow"}, r"decay: expected float, got 'slow'"),
        (f"{HERE}:Decaying", {"size": 3}, r"size: .* has no such option; known: decay, words"),
    ],
)
@pytest.mark.parametrize("name", ["ppo", "r2d2"])
def test_an_option_that_a_core_does_not_take_is_refused_by_its_key(name, core, options, message):
    with pytest.raises(ConfigError, match=rf"^agent\.core_options\.{message}"):
        validate(core, name, core_options=options)


def test_options_reach_the_core_in_the_type_that_it_declares():
    settings = core_settings("gtrxl", 4, {"memory_length": 7.0, "heads": 2})
    core = settings.make(parent=None)
    assert (core.size, core.memory_length, core.heads, core.layers) == (4, 7, 2, 2)
    assert isinstance(core.memory_length, int)
    own = core_settings(f"{HERE}:Decaying", 4, {"decay": 1, "words": ["any"]}).make(parent=None)
    assert (own.decay, list(own.words)) == (1.0, ["any"])


def test_options_without_a_size_are_not_ignored():
    with pytest.raises(ConfigError, match=r"agent\.core_options: a core needs a size.*lstm_size"):
        validate("lstm", lstm_size=None, core_options={"heads": 2})


def test_options_of_a_core_are_set_by_a_flag():
    flags = ["--agent.name", "ppo", "--agent.lstm-size", "8", "--agent.core", "gtrxl"]
    config = load_config(None, [*flags, "--agent.core-options.memory-length", "7"])
    assert config.agent.core_options == {"memory_length": 7}
