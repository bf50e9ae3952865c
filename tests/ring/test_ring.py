"""A learner cycle and its observers, in every mode."""

import pytest

from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig, RunConfig
from sebulba.ring.ring import Ring
from tests.rings import DueTimes, Observer, close, make_ring, run
from tests.toys import ToyConfig

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

MODES = ("threads", "serial", "anakin")


def make_config(env_steps=200):
    return Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(threads_per_device=1, num_envs=4, trajectory_length=5),
        learner=LearnerConfig(policy_lag=0),
        run=RunConfig(total_env_steps=env_steps, log_interval_env_steps=60),
        agent=ToyConfig(),
    )


class Recording(Observer):
    """Records what it is told, and where the ring is then."""

    def __init__(self, ring, name="", calls=None):
        self.ring, self.name, self.calls = ring, name, [] if calls is None else calls
        self.reports = []

    def on_cycle(self, report):
        assert self.ring.is_between_cycles
        assert report.num_cycles == self.ring.learner.num_cycles == self.ring.progress.cycles
        self.reports.append(report)
        self.calls.append(self.name)


def ran(mode, observers_of):
    ring = make_ring(make_config())
    observers = observers_of(ring)
    try:
        run(ring, mode=mode, observers=observers, due=DueTimes(every_env_steps=(60,)))
    finally:
        close(ring)
    return ring, observers


@pytest.mark.parametrize("mode", MODES)
def test_observers_are_told_of_every_unroll_and_update_once(mode):
    ring, (observer,) = ran(mode, lambda ring: [Recording(ring)])
    infos = [info for report in observer.reports for info in report.infos]
    assert [info.sequence_number for info in infos] == list(range(ring.learner.num_cycles))
    assert sum(info.env_steps for info in infos) == ring.progress.env_steps >= 200
    updates = [each["loss"].shape[0] for report in observer.reports for each in report.metrics]
    assert sum(updates) == ring.learner.num_updates > 0
    assert {lag for report in observer.reports for lag in report.policy_lags} == {0}


@pytest.mark.parametrize("mode", MODES)
def test_observers_are_told_in_their_order(mode):
    calls = []
    ran(mode, lambda ring: [Recording(ring, name, calls) for name in "abc"])
    assert calls == list("abc") * (len(calls) // 3) and calls


@pytest.mark.parametrize("mode", MODES)
def test_an_observer_that_raises_ends_the_run_between_cycles_and_is_named(mode):
    class Failing(Observer):
        def on_cycle(self, report):
            raise ValueError("no such thing")

    rings = []
    with pytest.raises(ValueError, match="no such thing") as error:
        ran(mode, lambda ring: rings.append(ring) or [Failing()])
    assert error.value.__notes__[0] == "Failing raised it in `on_cycle`."
    assert error.value.__notes__[-1].startswith("This happened in the learner, cycle ")
    (ring,) = rings
    assert ring.is_between_cycles
    ring.ledger.balance()


@pytest.mark.parametrize("mode", MODES)
def test_a_ring_stays_within_the_cycle_that_raised(mode, monkeypatch):
    def fail(self, infos, metrics):
        raise ValueError("no such thing")

    monkeypatch.setattr(Ring, "count", fail)
    rings = []
    with pytest.raises(ValueError, match="no such thing"):
        ran(mode, lambda ring: rings.append(ring) or [])
    assert not rings[0].is_between_cycles


@pytest.mark.parametrize("mode", MODES)
def test_an_observer_that_raises_while_it_is_polled_ends_the_run(mode):
    class Failing(Observer):
        def on_poll(self):
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        ran(mode, lambda ring: [Failing()])
