"""Benchmarks that start runs as processes say why a run failed."""

import pytest

from benchmarks import learning, startup


def test_the_error_output_of_a_run_that_fails_is_shown(tmp_path):
    error = r"--actor\.num-envs: expected int ≥ 1, got 0"
    flags = ["--actor.num-envs", "0"]
    with pytest.raises(RuntimeError, match=rf"(?s)got none in .* s: .*{error}"):
        startup.start(
            "impala_catch",
            flags,
            run_dir=tmp_path / "run",
            cache=tmp_path / "cache",
            bytecode=tmp_path / "bytecode",
        )
    with pytest.raises(RuntimeError, match=rf"(?s)exit code 0, got 2: .*{error}"):
        learning.learn("impala_catch", 0, flags)
