"""Where every env step is: double-entry accounts, one for each actor."""

import threading
from collections.abc import Sequence
from typing import Literal

Stage = Literal["in_flight", "queued", "learned", "discarded"]
STAGES: tuple[Stage, ...] = ("in_flight", "queued", "learned", "discarded")


class LedgerError(RuntimeError):
    """Env steps were moved that were not there: some were lost, or counted twice."""


class Ledger:
    """Env steps acted = learned + queued + in flight + discarded, for each actor, at any time.

    A trajectory is in flight when an actor has acted it and when the learner has taken it off the
    deque; it is discarded when the run stops before learning from it. Thread-safe.
    """

    def __init__(self, num_actors: int):
        self._lock = threading.Lock()
        self._acted = [0] * num_actors
        self._stages = [dict.fromkeys(STAGES, 0) for _ in range(num_actors)]

    def act(self, actor_id: int, env_steps: int) -> None:
        """Books env steps that an actor has just acted, as in flight."""
        with self._lock:
            self._acted[actor_id] += env_steps
            self._stages[actor_id]["in_flight"] += env_steps

    def move(self, actor_id: int, env_steps: int, source: Stage, target: Stage) -> None:
        """Moves env steps of an actor's trajectory from one stage to another.

        Raises:
            LedgerError: there are fewer env steps in `source`.
        """
        with self._lock:
            stages = self._stages[actor_id]
            if stages[source] < env_steps:
                raise LedgerError(
                    f"actor {actor_id}: {env_steps} env steps were to go from {source} to {target},"
                    f" but {source} holds {stages[source]}"
                )
            stages[source] -= env_steps
            stages[target] += env_steps

    def discard_in_flight(self) -> None:
        """Books what is in flight as discarded; called once no thread runs any more."""
        with self._lock:
            for stages in self._stages:
                stages["discarded"] += stages["in_flight"]
                stages["in_flight"] = 0

    def restore(self, learned: Sequence[int]) -> None:
        """Goes on from a checkpoint: of each actor, what was learned from is all that counts."""
        with self._lock:
            self._acted = list(learned)
            self._stages = [dict.fromkeys(STAGES, 0) | {"learned": steps} for steps in learned]

    def total(self, stage: Stage | Literal["acted"]) -> int:
        """Returns the env steps of all actors in a stage, or acted at all."""
        with self._lock:
            if stage == "acted":
                return sum(self._acted)
            return sum(stages[stage] for stages in self._stages)

    def balance(self) -> list[dict[str, int]]:
        """Returns each actor's accounts: `acted` and every stage.

        Raises:
            LedgerError: the stages of an actor do not add up to what it acted.
        """
        with self._lock:
            accounts = [
                {"acted": acted, **stages}
                for acted, stages in zip(self._acted, self._stages, strict=True)
            ]
        for actor_id, account in enumerate(accounts):
            if account["acted"] != sum(account[stage] for stage in STAGES):
                raise LedgerError(f"actor {actor_id}: the accounts do not balance: {account}")
        return accounts
