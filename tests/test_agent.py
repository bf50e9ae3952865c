"""What agents declare, by inheriting the protocol or by looking like one."""

import dataclasses

import pytest

from sebulba.agent import Agent, AgentSettings, declared
from sebulba.agent_check import AgentError, env_step_shapes, validate_agent
from sebulba.config.objects import NameOnly
from sebulba_agents.config import A2CConfig, ImpalaConfig
from tests.toys import ToyAgent, ToyConfig, toy_run_spec


class Inherits(ToyAgent, Agent):
    pass


class Counts(ToyAgent):
    learns_from_final_observations = True

    def advance_actor_state(self, actor_state, env_steps):
        return actor_state + env_steps


@pytest.mark.parametrize("agent_class", [ToyAgent, Inherits])
def test_an_agent_that_declares_nothing_has_the_defaults(agent_class):
    agent = agent_class(ToyConfig(), toy_run_spec())
    assert declared(agent, Agent, "learns_from_final_observations") is False
    assert declared(agent, Agent, "advance_actor_state")("state", 7) == "state"


def test_an_agent_need_not_inherit_for_its_declarations_to_count():
    agent = Counts(ToyConfig(), toy_run_spec())
    assert declared(agent, Agent, "learns_from_final_observations") is True
    assert declared(agent, Agent, "advance_actor_state")(3, 7) == 10


def test_settings_correct_for_the_policy_lag_unless_they_say_no():
    @dataclasses.dataclass(frozen=True)
    class OnPolicy:
        corrects_for_policy_lag = False

    settings = (ToyConfig(), NameOnly(name="mine"), ImpalaConfig(), A2CConfig(), OnPolicy())
    corrects = [declared(each, AgentSettings, "corrects_for_policy_lag") for each in settings]
    assert corrects == [True, True, True, False, False]


class OldLoss(ToyAgent):
    def loss(self, networks, experience, key, step):
        raise AssertionError("traced")


class OldOptimize(ToyAgent):
    def optimize(self, networks, opt_state, grads, experience):
        raise AssertionError("traced")


@pytest.mark.parametrize(
    ("agent_class", "expected", "got"),
    [
        (
            OldLoss,
            r"def loss\(self, networks, experience, key, clock\)",
            r"loss\(networks, experience, key, step\)",
        ),
        (
            OldOptimize,
            r"def optimize\(self, networks, opt_state, grads, experience, clock\)",
            r"optimize\(networks, opt_state, grads, experience\)",
        ),
    ],
)
def test_a_method_without_a_clock_is_refused_with_the_signature(agent_class, expected, got):
    message = rf"{agent_class.__name__}\.\w+: expected `{expected}`, got `{got}`. `clock\.step` is"
    with pytest.raises(AgentError, match=message):
        validate_agent(agent_class(ToyConfig(), toy_run_spec()), toy_run_spec())


def test_a_method_that_passes_its_arguments_on_need_not_name_the_clock():
    class Wrapper(ToyAgent):
        def optimize(self, networks, *args):
            return super().optimize(networks, *args)

    validate_agent(Wrapper(ToyConfig(), toy_run_spec()), toy_run_spec())


def test_an_agent_that_inherits_the_protocol_and_lacks_a_method_is_refused():
    class Unfinished(Agent):
        def __init__(self, config, run_spec):
            del config, run_spec

    with pytest.raises(AgentError, match="Unfinished has no method act; implement"):
        validate_agent(Unfinished(ToyConfig(), toy_run_spec()), toy_run_spec())


def test_each_player_has_a_stream_of_its_own():
    spec = toy_run_spec()
    environment = dataclasses.replace(spec.environment, num_players=3)
    spec = dataclasses.replace(spec, environment=environment, num_learner_devices=2)
    assert (spec.num_envs, spec.num_streams, spec.num_streams_per_learner_device) == (4, 12, 6)
    assert spec.num_streams_of_all_hosts == 24
    assert env_step_shapes(spec).reward.shape == (12,)
