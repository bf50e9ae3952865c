"""When an actor's environments are recreated, and what their stream leaves behind.

One mechanism serves three occasions: a fault, fixed cycles (so that a checkpoint need not hold
environments), and resuming a run whose environments cannot be stored. The recreated environments
begin a new stream: its row 0 is a reset although the row before ended no episode, as after a
truncation whose final observation was lost.
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
    env_step: EnvStep  # [B], from `reset`
    env_state: PyTree  # as `ActCarry` has it


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamBoundary:
    """The episodes at the end of a stream: the next trajectory reports them."""

    finished: tuple[EpisodeRecord, ...] = ()  # with the stream's last row
    num_interrupted: int = 0  # in no statistics


def boundary_after(carry: ActCarry) -> StreamBoundary:
    """Return the boundary of a stream whose last row is the one in `carry`."""
    finished, num_interrupted = end_episodes(carry.statistics, carry.env_step)
    return StreamBoundary(finished=finished, num_interrupted=num_interrupted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvResetPolicy:
    """When and how one actor's environments are recreated."""

    recreate: Callable[[int], LiveEnvironment]  # (seed)
    run_seed: int
    global_actor_id: int
    every: int | None  # actor cycles; None: not at fixed cycles
    max_restarts: int  # after faults, in the whole run
    on_warning: Callable[[str], None]  # takes one line, in the actor's thread

    def is_due(self, num_cycles: int) -> bool:
        """Whether environments are recreated before cycle `num_cycles`, resumed there or not."""
        return self.every is not None and num_cycles > 0 and num_cycles % self.every == 0

    def environment_seed(self, num_cycles: int, attempt: int) -> int:
        """Return the seed of environments that begin with cycle `num_cycles`.

        Args:
            num_cycles: cycles that the actor has completed.
            attempt: number of faults in this cycle, so that a failed episode is not repeated.
        """
        names = ("actor", self.global_actor_id, "cycle", num_cycles)
        return environment_seed(self.run_seed, *names, *(("attempt", attempt) if attempt else ()))
