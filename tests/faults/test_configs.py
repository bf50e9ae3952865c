"""Configs that no run can be made of, found only where devices and environments are known."""

import pytest

from sebulba.run import training
from tests.faults.runs import last_line, make_config


@pytest.mark.parametrize(
    ("sections", "messages"),
    [
        ({"devices": {"learner": (9,)}}, ("devices.learner", "9")),
        ({"devices": {"learner": (0, 1, 2)}}, ("actor.num_envs", "3", "4")),
        ({"env": {"id": "Cach-v0"}}, ("env.id", "Catch-v0")),
        ({"env": {"suite": "gymnasium", "id": "CartPole-v1"}, "actor": {"cycle": "fused"}},
         ("actor.cycle", "expected auto or stepped")),
    ],
)  # fmt: skip
def test_config_that_cannot_be_run_ends_with_code_2_and_leaves_nothing(
    sections, messages, tmp_path, capsys
):
    assert training.train_to_exit_code(make_config(tmp_path / "run", **sections)) == 2
    last = last_line(capsys)
    assert all(message in last for message in messages), last
    assert not (tmp_path / "run").exists()
