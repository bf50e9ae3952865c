"""Settings that agents share, as bases of their own. Imports no jax."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sebulba.agent import AgentSettings
from sebulba.ranges import Count, Fraction, Positive
from sebulba.references import Network
from sebulba.task import ObservationLeaf, Task
from sebulba.toolkit.schedules import ScheduledNonNegative

if TYPE_CHECKING:
    from sebulba.types import EnvironmentSpec

# On the 7×7 cells that an agent sees in MiniGrid, dense layers learn faster than `small`.
_SMALLEST_CONVOLVED = 10

ComputeDtype = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class TorsoSettings:
    """What `sebulba.toolkit.torsos` builds a network from; the fields of `NetworkConfig`."""

    network: Network
    hidden_sizes: tuple[int, ...]
    compute_dtype: ComputeDtype = "float32"
    choices: tuple[tuple[range, ...], ...] | None = None  # as in `EnvironmentSpec`


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig(AgentSettings):
    """Settings of all agents with a network."""

    name: str = ""
    """Agent name."""
    network: Network = "auto"
    """From observations to features: tanh or ReLU layers, none, convolutions, or your own flax
    module. auto: convolutions if there is an image, shallow or small, and dense layers if not."""
    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Widths of the mlp's layers; your own network gets them if it has this field."""
    compute_dtype: ComputeDtype = "float32"
    """Type that the layers before the heads compute in, for accelerators; parameters, recurrent
    cores, heads and losses stay float32. Your own network gets it if it has this field."""

    # What `auto` means if no observation is an image.
    network_of_vectors: ClassVar[Network] = "mlp"

    @classmethod
    def network_for(cls, observation: Sequence[ObservationLeaf]) -> Network:
        """Return the network that `auto` means for the leaves of an observation."""
        sides = [leaf.image_side for leaf in observation if leaf.is_image]
        if not sides or min(sides) < _SMALLEST_CONVOLVED:
            return cls.network_of_vectors
        return "small" if any(leaf.is_small_image for leaf in observation) else "shallow"

    @classmethod
    def defaults_for(cls, task: Task) -> dict[str, Any]:
        """Return the network."""
        return {"agent.network": cls.network_for(task.observation)}

    def torso_for(self, environment: "EnvironmentSpec") -> TorsoSettings:
        """Return the settings of the layers before the heads."""
        network = self.network
        if network == "auto":
            network = self.network_for(environment.observation_leaves)
        return TorsoSettings(network, self.hidden_sizes, self.compute_dtype, environment.choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(NetworkConfig):
    """Settings of all agents with a replay."""

    discount: Fraction = 0.99
    """Discount factor γ."""
    batch_size: Count = 64
    """Transitions per update, over the learner devices of a host."""
    replay_capacity: Count = 100_000
    """Rows (time steps) that the replay holds, over the learner devices of a host."""
    min_replay_rows: Count = 1_000
    """Rows collected before learning starts, over the learner devices of a host."""
    replay_ratio: Positive = 8.0
    """Rows learned from per row collected, once learning has started; an update learns from
    batch_size rows. Reset rows and repeated final rows count as collected."""
    learning_rate: ScheduledNonNegative = 1e-3
    """Learning rate of Adam."""
    adam_epsilon: Positive = 1e-5
    """ε of Adam."""
