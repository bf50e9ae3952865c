"""Double-entry accounts of every env step, one for each actor."""

import threading
from collections.abc import Sequence
from typing import Literal

Stage = Literal["in_flight", "queued", "learned", "discarded"]
STAGES: tuple[Stage, ...] = ("in_flight", "queued", "learned", "discarded")


class LedgerError(RuntimeError):
    """Env steps were lost or counted twice."""


class Ledger:
    """Env steps acted = learned + queued + in flight + discarded, for each actor, at any time.

    A trajectory is in flight between the actor and the deque, and between the deque and the end of
    its learner cycle. It is discarded if the run stops before learning from it. Thread-safe.
    """

    def __init__(self, num_actors: int):
        self._lock = threading.Lock()
        self._acted = [0] * num_actors
        self._stages = [dict.fromkeys(STAGES, 0) for _ in range(num_actors)]

    def collect(self, actor_id: int, env_steps: int) -> None:
        """Record new env steps of an actor as in flight."""
        with self._lock:
            self._acted[actor_id] += env_steps
            self._stages[actor_id]["in_flight"] += env_steps

    def move(self, actor_id: int, env_steps: int, source: Stage, target: Stage) -> None:
        """Move env steps of an actor's trajectory from one stage to another.

        Raises:
            LedgerError: `source` holds fewer env steps.
        """
        with self._lock:
            stages = self._stages[actor_id]
            if stages[source] < env_steps:
                raise LedgerError(
                    f"actor {actor_id}: expected at least {env_steps} env steps in {source} to move"
                    f" to {target}, got {stages[source]}"
                )
            stages[source] -= env_steps
            stages[target] += env_steps

    def discard_in_flight(self) -> None:
        """Record what is in flight as discarded; call after all threads have ended."""
        with self._lock:
            for stages in self._stages:
                stages["discarded"] += stages["in_flight"]
                stages["in_flight"] = 0

    def restore(self, learned: Sequence[int]) -> None:
        """Resume from a checkpoint, which counts only the learned env steps of each actor."""
        with self._lock:
            self._acted = list(learned)
            self._stages = [dict.fromkeys(STAGES, 0) | {"learned": steps} for steps in learned]

    def balance(self) -> list[dict[str, int]]:
        """Return each actor's account: `acted` and every stage.

        Raises:
            LedgerError: the stages of an actor do not add up to `acted`.
        """
        with self._lock:
            accounts = [
                {"acted": acted, **stages}
                for acted, stages in zip(self._acted, self._stages, strict=True)
            ]
        for actor_id, account in enumerate(accounts):
            if account["acted"] != sum(account[stage] for stage in STAGES):
                raise LedgerError(f"actor {actor_id}: the account does not balance: {account}")
        return accounts
