"""Write run directories, as runs do."""

import dataclasses
import json

from sebulba.config import Config, EnvConfig
from sebulba.config.loading import to_yaml
from sebulba_agents.config import ImpalaConfig

SHARES = {"actor": {"act": 0.75, "wait for queue": 0.25}, "learner": {"update": 1.0}}
RETURNS = (None, 1.0, 2.0, 4.0)


def make_run(path, *, returns=RETURNS, status="done", env_id="Catch-v0", **changes):
    """Write a run directory with a row of metrics for each of `returns`, 100 env steps apart.

    Without a `status`, the run has not ended and has no summary.
    """
    path.mkdir(parents=True)
    config = Config(env=EnvConfig(suite="jax", id=env_id), agent=ImpalaConfig())
    (path / "config.yaml").write_text(to_yaml(dataclasses.replace(config, **changes)))
    rows = [make_row(number, value) for number, value in enumerate(returns, start=1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    process = {
        "argv": ["train.py", "my config.yaml"],
        "started_at": "2025-01-02T03:04:05+00:00",
        "versions": {"jax": "0.10.2"},
        "devices": ["cpu: cpu"],
    }
    (path / "run.json").write_text(json.dumps(process))
    if status is not None:
        (path / "summary.json").write_text(json.dumps(make_summary(status, rows)))
    return path


def make_row(number, value):
    return {
        "env_steps": 100 * number,
        "updates": number,
        "wall_time_s": 2.0 * number,
        "steps_per_second": 50.0 if number > 1 else None,
        "episode_return_mean": value,
        "policy_lag_mean": 1.5,
        "policy_lag/0": 1,
        "policy_lag/2": 3,
        **{f"time/{kind}/{key}": each for kind in SHARES for key, each in SHARES[kind].items()},
    }


def make_summary(status, rows):
    return {
        "status": status,
        "env_steps": rows[-1]["env_steps"] if rows else 0,
        "updates": len(rows),
        "wall_time_s": 3723.0,
        "steps_per_second": 12345.6,
        "startup_s": 1.5,
        "best_episode_return_mean": 4.0,
        "final_episode_return_mean": 4.0,
        "time_shares": SHARES,
        "bound_by": "the actors bind: more actor.num_envs",
        "ledger": [{"acted": 410, "in_flight": 0, "queued": 0, "learned": 400, "discarded": 10}],
        "resume_command": "python -m sebulba.train x --resume latest",
    }
