"""When and how an actor's environments are made anew.

There is one mechanism for three occasions: after a fault, at fixed cycles (so that a checkpoint
need not hold environments), and when a run is resumed whose environments cannot be stored. What
follows is a stream of its own: row 0 is a reset although the row before was no episode's end, as
after a truncation whose final observation was lost.
"""

import dataclasses
from collections.abc import Callable

from sebulba.acting.act_cycle import ActCarry, ActCycle
from sebulba.acting.episodes import end_episodes
from sebulba.envs.base import Environment
from sebulba.toolkit.prng import environment_seed
from sebulba.types import EnvStep, EpisodeRecord, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LiveEnvironment:
    """Environments that have been reset, and the act cycle over them."""

    environment: Environment
    act_cycle: ActCycle
    env_step: EnvStep  # [B], what `reset` gave
    env_state: PyTree  # as `ActCarry` has it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seam:
    """What the end of a stream leaves of its episodes."""

    finished: tuple[EpisodeRecord, ...] = ()  # with the stream's last row
    num_cut: int = 0  # under way, and in no statistics


def seam_after(carry: ActCarry) -> Seam:
    """Returns the seam of a stream that ends with the row which `carry` stands at."""
    finished, num_cut = end_episodes(carry.statistics, carry.env_step)
    return Seam(finished=finished, num_cut=num_cut)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Renewal:
    """The rules of one actor."""

    make: Callable[[int], LiveEnvironment]  # (seed)
    seed: int  # of the run
    number: int  # of the actor, among those of all hosts
    every: int | None  # actor cycles; None: not at fixed cycles
    max_restarts: int  # after faults, in the whole run
    on_warning: Callable[[str], None]  # takes one line; called in the actor's thread

    def is_due(self, num_cycles: int) -> bool:
        """Whether environments are made anew before cycle `num_cycles`, interrupted or not."""
        return self.every is not None and num_cycles > 0 and num_cycles % self.every == 0

    def environment_seed(self, num_cycles: int, attempt: int) -> int:
        """Returns the seed of environments that begin with cycle `num_cycles`.

        Args:
            num_cycles: of the actor, so far.
            attempt: 0, or the number of faults in this cycle: what has failed is not repeated.
        """
        names = ("actor", self.number, "cycle", num_cycles)
        return environment_seed(self.seed, *names, *(("attempt", attempt) if attempt else ()))
