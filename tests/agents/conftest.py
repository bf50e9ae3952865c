"""What several files of tests look at, made once."""

import jax
import pytest

from sebulba_agents.r2d2 import R2D2
from sebulba_agents.target_networks import TargetNetworks
from tests.agents.r2d2_life import CONFIG, LENGTH, RUN_SPEC, live, random_rows, remember
from tests.compiled import jitted


@pytest.fixture(scope="session")
def lived():
    """An agent, different online and target networks, its life, and its replay."""
    agent = R2D2(CONFIG, RUN_SPEC)
    networks = TargetNetworks(
        online=jitted(agent.init_networks)(jax.random.key(0)).online,
        target=jitted(agent.init_networks)(jax.random.key(1)).online,
    )
    trajectories = live(agent, networks, random_rows(8 * LENGTH + 1), 8)
    return agent, networks, trajectories, remember(agent, networks, trajectories)
