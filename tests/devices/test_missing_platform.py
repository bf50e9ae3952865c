"""Commands on a machine that has no device of JAX_PLATFORMS."""

import pytest

from sebulba.process import EXIT_CONFIG
from tests.subprocesses import environment, run_python

NO_GPU = {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.mark.parametrize(
    "command",
    [
        ("train", "impala_bandit", "--run-dir", "{tmp}/run"),
        ("evaluate", "{run}"),
        ("check", "impala_bandit"),
        ("rerun", "{run}", "--to-cycle", "1"),
        ("export", "{run}", "-o", "{tmp}/policy"),
    ],
    ids=lambda command: command[0],
)
def test_a_platform_without_a_device_is_one_line_and_exit_code_2(command, run_of, tmp_path):
    name, *arguments = (
        part.format(tmp=tmp_path, run=run_of("impala")) if "{" in part else part for part in command
    )
    process = run_python("-m", f"sebulba.{name}", *arguments, variables=environment(**NO_GPU))
    assert process.returncode == EXIT_CONFIG
    (line,) = process.stderr.splitlines()
    assert line.startswith("sebulba: JAX_PLATFORMS: expected platforms that have a device here")
    assert "got cuda" in line and "Unset it, or install JAX for that platform" in line
    assert list(tmp_path.iterdir()) == []
