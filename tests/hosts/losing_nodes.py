"""Runs of two hosts on a cluster whose nodes are killed."""

from tests.docs.blocks import ROOT
from tests.hosts.processes import summaries
from tests.subprocesses import environment

DEADLINE_S = 1500.0
NUM_KILLS = 10
NUM_ENV_STEPS = 20_000
# At most 400 env steps/s, since environments wait: more than the kills leave time for.
SLOW = (
    ROOT / "benchmarks" / "waiting.yaml",
    *("--actor.threads-per-device", 1, "--actor.num-envs", 1, "--actor.trajectory-length", 5),
    *("--run.total-env-steps", NUM_ENV_STEPS, "--checkpoint.interval-s", 1),
)
"""A config and flags."""
HEARTBEAT = ("--distributed.heartbeat-timeout-s", 10)


def variables(**others):
    """Return the environment variables of a host."""
    paths = f"{ROOT}:{ROOT / 'agents'}"
    return environment(JAX_NUM_CPU_DEVICES="1", PYTHONPATH=paths, PYTHONUNBUFFERED="1", **others)


def check_end(tmp_path):
    """Check that both hosts have the same networks, and that the ledger has every env step."""
    first, second = summaries(tmp_path / "run")
    assert first["status"] == second["status"] == "done"
    assert first["networks_crc32"] == second["networks_crc32"]
    learned = [each["learned"] for host in (first, second) for each in host["ledger"]]
    assert sum(learned) == first["env_steps"]
    return first
