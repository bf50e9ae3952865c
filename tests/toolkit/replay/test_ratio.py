"""The number of updates that keeps the replay ratio."""

from sebulba.toolkit.replay.ratio import ReplayRatio
from tests.toys import toy_run_spec


def test_a_ratio_is_its_decimal_digits():
    """The float 0.3 is slightly less, so an update would come a cycle later whenever one is due."""
    spec = toy_run_spec(num_envs=4, num_actors=1, trajectory_length=5)
    ratio = ReplayRatio(spec, replay_ratio=0.3, min_replay_rows=0, rows_per_update=6)
    assert [ratio.num_updates_in(cycle) for cycle in range(5)] == [1] * 5
