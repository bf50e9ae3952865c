"""What the questions share: the recording of a run, and what they measure of the loss."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from sebulba.check.recording import Recording, record
from sebulba.check.sensitivity import LossSensitivity
from sebulba.check.subject import Subject

_Shared = TypeVar("_Shared")


class Evidence:
    """Recorded, compiled and drawn when the first question needs it."""

    def __init__(self, subject: Subject, recording: Recording | None = None):
        """Record nothing yet.

        Args:
            subject: the run.
            recording: its trajectories; None: record them when they are needed.
        """
        self.subject = subject
        self._given = recording
        self._shared: dict[Callable, object] = {}

    @functools.cached_property
    def recording(self) -> Recording:
        """The trajectories of the run."""
        return self._given or record(self.subject)

    @functools.cached_property
    def loss(self) -> LossSensitivity:
        """The loss and its gradients, as a function of trajectories and networks."""
        return LossSensitivity(self.subject, self.recording)

    def loss_with(self, **settings: Any) -> LossSensitivity:
        """Return the loss of the agent with other settings; it ignores those that it lacks."""
        return LossSensitivity(self.subject, self.recording, **settings)

    @functools.cached_property
    def has_updates(self) -> bool:
        """Whether the agent takes updates."""
        return self.subject.first_learning_cycle is not None

    def shared(self, make: Callable[["Evidence"], _Shared]) -> _Shared:
        """Return what a function makes of the evidence; it is called once."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]  # type: ignore[return-value]
