"""When a run is saved while it trains."""

import types

import pytest

from sebulba.run.autosave import Autosave
from sebulba.storage.checkpoints.checkpointer import Checkpointer, snapshot
from sebulba.storage.checkpoints.restore import steps_in
from tests.rings import close, make_ring, rows_observer
from tests.run.runs import make_config


class Checkpoints:
    """Takes checkpoints in no time, and remembers when."""

    def __init__(self, clock):
        self.last_saved = None
        self.saved_at = []
        self._clock = clock

    def save(self, step, arrays, meta, *, score):
        self.saved_at.append(self._clock.seconds)

    def is_saving(self):
        return False

    def check_for_errors(self):
        pass


@pytest.mark.parametrize(
    ("interval_s", "expected"),
    [(300.0, [30, 330, 630, 930]), (20.0, list(range(20, 1000, 20))), (None, [])],
)
def test_the_first_checkpoint_does_not_wait_for_a_long_interval(interval_s, expected, tmp_path):
    clock = types.SimpleNamespace(seconds=0.0)
    ring = make_ring(make_config(tmp_path))
    checkpoints = Checkpoints(clock)
    saving = Autosave(
        ring,
        checkpoints,
        rows=rows_observer(ring)[0],
        agreement=types.SimpleNamespace(allows_checkpoint=True),
        interval_s=interval_s,
        on_warning=pytest.fail,
        now=lambda: clock.seconds,
    )
    for clock.seconds in range(0, 1000, 10):
        saving.on_cycle(None)
        saving.on_poll()
    close(ring)
    assert checkpoints.saved_at == expected


def test_the_checkpoint_resumed_from_is_kept_until_every_host_has_a_newer_one(tmp_path):
    ring, checkpointers = make_ring(make_config(tmp_path)), []
    agreements = [types.SimpleNamespace(last_saved=0) for _ in range(2)]
    for host, agreement in enumerate(agreements):
        Checkpointer(tmp_path / str(host), keep=1).save(10, snapshot({}), {}, score=None)
        checkpointer = Checkpointer(
            tmp_path / str(host),
            keep=1,
            keep_also=lambda: min(each.last_saved for each in agreements),
            resumed_from=10,
        )
        Autosave(
            ring,
            checkpointer,
            rows=rows_observer(ring)[0],
            agreement=agreement,
            interval_s=None,
            on_warning=pytest.fail,
        )
        checkpointers.append(checkpointer)
    close(ring)
    checkpointers[0].save(20, snapshot({}), {}, score=None)  # The other host dies in its save.
    assert steps_in(checkpointers[0].directory) == [10, 20]
