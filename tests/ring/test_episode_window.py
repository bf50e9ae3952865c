import json
import math

import pytest

from sebulba.ring.progress import EpisodeWindow
from sebulba.ring.records import FinishedEpisodes
from tests.ring_parts import make_episodes


def records(*returns: float) -> FinishedEpisodes:
    return make_episodes(returns, range(10, 10 + len(returns)))


def test_window_has_no_mean_until_twenty_episodes_have_finished():
    window = EpisodeWindow(100)
    window.add(records(*range(19)))
    assert (window.return_mean, window.length_mean, window.best_return_mean) == (None, None, None)
    assert window.num_episodes == 19
    window.add(records(19))
    assert window.return_mean == 9.5
    assert window.length_mean == pytest.approx((sum(range(10, 29)) + 10) / 20)


def test_window_smaller_than_the_minimum_has_a_mean_once_full():
    window = EpisodeWindow(3)
    window.add(records(1, 2))
    assert window.return_mean is None
    window.add(records(6))
    assert window.return_mean == 3.0


def test_window_means_are_over_the_newest_episodes_only():
    window = EpisodeWindow(4, minimum=2)
    for value in (100, 100, 1, 2, 3, 4):
        window.add(records(value))
    assert window.return_mean == 2.5
    assert window.num_episodes == 6


def test_window_forgets_a_nan_return_once_it_has_left():
    window = EpisodeWindow(2, minimum=1)
    window.add(records(float("nan"), 5, 7))
    assert window.return_mean == 6.0


def test_window_best_keeps_the_highest_mean():
    window = EpisodeWindow(2, minimum=2)
    bests = []
    for value in (1, 3, 9, 1, 0):  # means: none, 2, 6, 5, 0.5
        window.add(records(value))
        bests.append(window.best_return_mean)
    assert bests == [None, 2.0, 6.0, 6.0, 6.0]


def test_window_best_may_be_negative():
    window = EpisodeWindow(1)
    window.add(records(-21))
    window.add(records(-30))
    assert window.best_return_mean == -21.0


def test_window_restored_from_json_continues_as_if_uninterrupted():
    window, resumed = EpisodeWindow(3, minimum=2), EpisodeWindow(3, minimum=2)
    window.add(records(0.1, 0.2, 0.7, 0.4))
    resumed.restore(json.loads(json.dumps(window.state())))
    for each in (window, resumed):
        each.add(records(0.3))
    assert resumed.state() == window.state()
    assert resumed.return_mean == window.return_mean
    assert resumed.num_episodes == 5


def test_window_takes_the_last_episodes_and_the_number_of_all():
    window, expected = EpisodeWindow(3, minimum=2), EpisodeWindow(3, minimum=2)
    expected.add(records(1, 2, 3, 4, 5))
    window.add(make_episodes([3, 4, 5], [12, 13, 14]), num_finished=5)
    assert window.state() == expected.state()
    assert window.num_episodes == 5


def test_window_refuses_fewer_episodes_than_it_holds():
    with pytest.raises(ValueError, match=r"the last 3 of 5 episodes .* got 2: `max_finished`"):
        EpisodeWindow(3).add(records(1, 2), num_finished=5)


def test_results_of_reducers_leave_the_window_with_their_episodes():
    window = EpisodeWindow(4, minimum=2)
    window.add(make_episodes([0, 0, 0], a=[100, 1, 2]))
    assert window.reduced_mean("a") == pytest.approx(103 / 3)
    window.add(make_episodes([0, 0], has_results=[False, True], a=[7, 3]))
    assert window.reduced_mean("a") == 2.0  # of 1, 2 and 3; the interrupted one has none
    assert window.reduced_mean("b") is None
    resumed = EpisodeWindow(4, minimum=2)
    resumed.restore(json.loads(json.dumps(window.state())))
    assert resumed.state() == window.state()
    assert window.state()["reduced"] == [{"a": 1.0}, {"a": 2.0}, {}, {"a": 3.0}]
    for each in (window, resumed):
        each.add(make_episodes([0], a=[float("nan")]))
        assert math.isnan(each.reduced_mean("a"))  # A result that is no number is one.
        each.add(make_episodes([0, 0, 0], b=[1, 2, 3]))
        assert (each.reduced_mean("a"), each.reduced_mean("b")) == (None, 2.0)


def test_window_without_episodes_is_refused():
    with pytest.raises(ValueError, match=r"run\.return_window of at least 1 episode, got 0"):
        EpisodeWindow(0)
