"""Rainbow (Hessel et al. 2018, arXiv 1710.02298): six extensions of DQN, each of them a setting.

Double Q-learning, prioritised replay and n-step targets are those of `DDQN`, which learns here from
distributions of returns with noisy layers and a dueling head.
"""

from sebulba.errors import ConfigError
from sebulba.types import RunSpec
from sebulba_agents.ddqn import DDQN
from sebulba_agents.q_learning import QNetwork, num_discrete_actions
from sebulba_agents.replay_config import RainbowConfig
from sebulba_agents.value_distributions import CategoricalReturns, QuantileReturns


def make_rainbow(config: RainbowConfig, run_spec: RunSpec) -> DDQN:
    """Return a `DDQN` with the network and the loss of the settings.

    Args:
        config: with `distribution: null`, `noisy_sigma: null`, `dueling_size: null`, `n_step: 1`
            and `priority_exponent: 0` the agent computes what `ddqn` does.
        run_spec: the run's.

    Raises:
        ConfigError: the settings or the environment do not suit the agent.
    """
    if config.noisy_sigma is None and config.epsilon == 0.0:
        raise ConfigError(
            "agent.epsilon: expected exploration without noisy layers (agent.noisy_sigma: null),"
            " got 0; set a rate or a schedule, such as agent.epsilon 0.05"
        )
    if config.distribution == "categorical" and config.value_min >= config.value_max:
        raise ConfigError(
            "agent.value_min: expected a number below agent.value_max, got"
            f" {config.value_min} and {config.value_max}"
        )
    network = QNetwork(
        num_actions=num_discrete_actions(run_spec, config.name),
        torso=config.torso_for(run_spec.environment),
        dueling_size=config.dueling_size,
        num_atoms=None if config.distribution is None else config.num_atoms,
        noisy_sigma=config.noisy_sigma,
    )
    if config.distribution is None:
        return DDQN(config, run_spec, network=network)
    returns: CategoricalReturns | QuantileReturns
    if config.distribution == "categorical":
        returns = CategoricalReturns(
            least=config.value_min, greatest=config.value_max, num_atoms=config.num_atoms
        )
    else:
        returns = QuantileReturns(num_quantiles=config.num_atoms)
    return DDQN(config, run_spec, network=network, loss=returns.loss, values=returns.values)
