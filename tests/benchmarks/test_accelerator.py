"""The benchmark for accelerators, on virtual devices."""

import json

import pytest

from tests.subprocesses import run_python


@pytest.mark.slow
def test_a_small_measurement_has_every_figure(tmp_path):
    path = tmp_path / "result.json"
    command = ["-m", "benchmarks.accelerator", "--suite", "jax", "--id", "Catch-v0"]
    command += ["--networks", "mlp", "--num-envs", "8", "--seconds", "0.05", "--json", str(path)]
    done = run_python(*command, "--matrix-size", "256")
    assert done.returncode == 0, done.stderr
    limits, *networks = json.loads(path.read_text())["results"]
    assert len(limits["rates"]) == 3
    assert [each["name"] for each in networks] == ["mlp, float32", "mlp, bfloat16"]
    for each in networks:
        assert each["rates"].keys() == {"acting, stepped", "acting, fused", "updates", "a run"}
        figures = [*each["rates"].values(), *each["ratios"].values()]
        assert len(each["ratios"]) == 3 and all(figure["median"] > 0.0 for figure in figures)
