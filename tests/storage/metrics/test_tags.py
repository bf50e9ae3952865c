import pytest

from sebulba.storage.metrics.tags import GROUPS, tag_of


@pytest.mark.parametrize(
    ("column", "tag"),
    [
        ("episode_return_mean", "episode/return_mean"),
        ("episodes", "episodes/episodes"),
        ("episode/lines_cleared", "episode/lines_cleared"),
        ("evaluation/return_mean", "evaluation/return_mean"),
        ("steps_per_second", "speed/steps_per_second"),
        ("time/actor/act", "speed/time/actor/act"),
        ("policy_lag/2", "ring/policy_lag/2"),
        ("loss", "loss/loss"),
        ("value_loss", "loss/value_loss"),  # of an agent
        ("model/accuracy", "model/accuracy"),  # of an agent with groups of its own
    ],
)
def test_the_tag_of_a_column_is_its_group_and_its_name(column, tag):
    assert tag_of(column) == tag


def test_no_two_columns_have_the_same_tag():
    columns = [column for group in GROUPS.values() for column in group]
    assert len(set(map(tag_of, columns))) == len(columns)


def test_returns_come_first_in_the_order_of_names():
    tags = sorted(
        tag_of(column) for group in GROUPS.values() for column in group if "…" not in column
    )
    assert tags[:2] == ["episode/return_last", "episode/return_mean"]
