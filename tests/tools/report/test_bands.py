import numpy as np

from sebulba.tools.report.bands import band, curve
from sebulba.tools.report.runs import read_run
from tests.tools.report.directories import make_run


def make_curve(*points):
    xs, ys = zip(*points, strict=True)
    return np.array(xs, float), np.array(ys, float)


NOTHING = (np.array([]), np.array([]))


def test_band_is_mean_and_range_between_points_of_different_curves():
    result = band([make_curve((0, 0), (2, 4)), make_curve((0, 2), (1, 0), (2, 0))])
    np.testing.assert_allclose(result.x, [0, 1, 2])
    np.testing.assert_allclose(result.mean, [1, 1, 2])
    np.testing.assert_allclose(result.low, [0, 0, 0])
    np.testing.assert_allclose(result.high, [2, 2, 4])


def test_band_covers_what_every_curve_covers():
    result = band([make_curve((0, 1), (9, 1)), make_curve((3, 1), (5, 1), (12, 1))])
    np.testing.assert_allclose(result.x, [3, 5, 9])


def test_band_needs_two_curves_that_overlap():
    line = make_curve((0, 1), (1, 1))
    assert band([line, NOTHING]) is None
    assert band([line, make_curve((2, 1), (3, 1))]) is None
    assert band([]) is None


def test_curve_leaves_out_rows_without_a_value(tmp_path):
    run = read_run(make_run(tmp_path / "run", returns=(None, 1.0, None, 3.0)))
    xs, ys = curve(run, "env_steps", "episode_return_mean")
    np.testing.assert_allclose(xs, [200, 400])
    np.testing.assert_allclose(ys, [1, 3])
