"""What lies beside a user's project changes nothing."""

import pytest

from tests.subprocesses import run_python
from tests.test_structure import DOORS


@pytest.mark.parametrize("door", DOORS)
def test_a_command_runs_beside_folders_with_the_names_of_ours(door, tmp_path):
    for name in ("agents", "benchmarks", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not this one')\n")
    process = run_python("-m", f"sebulba.{door}", "--help", cwd=tmp_path)
    assert process.returncode == 0, process.stderr


def test_agents_are_found_beside_a_package_named_agents(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "__init__.py").write_text("AGENTS = None\n")
    (tmp_path / "config.yaml").write_text("agent: {name: impla}\n")
    process = run_python("-m", "sebulba.train", "config.yaml", cwd=tmp_path)
    assert process.returncode == 2
    assert "did you mean impala" in process.stderr
