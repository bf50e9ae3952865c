"""Measure the env steps per second that a config learns from, and compare them with its parts.

    python -m benchmarks.throughput configs/impala_cartpole.yaml [--env-steps 100000] [--json FILE]

Any other flag is the config's, as of `python -m sebulba.train`.

For comparison: the same actors without a learner, and environment, inference and update, each
alone, with the serial limit 1 / (1/environment + 1/inference + 1/update). Each end-to-end repeat is
a new run, measured without start-up and compilation.
"""

from collections.abc import Callable

from benchmarks import alone, harness, rings
from benchmarks.harness import Result
from sebulba.config import Config
from sebulba.envs import make_environment
from sebulba.ring.make import made_ring
from sebulba.ring.ring import Ring


def measure(config: Config, *, env_steps: int, repeats: int) -> Result:
    """Measure env steps per second of the config and of its parts."""
    config = rings.of_length(config, env_steps)
    rows_per_cycle = config.actor.num_envs * config.actor.trajectory_length
    with made_ring(config) as ring:
        num_actors = len(ring.actors)
        cycles = max(1, env_steps // (rows_per_cycle * num_actors))
        work: dict[str, Callable[[], float | harness.Timed]] = {
            "end to end": lambda: rings.run_ring(config),
            "the same actors alone": rings.ActorsAlone(ring, cycles),
            **_acting_alone(config, ring, cycles),
            "update alone": rings.UpdatesAlone(ring, max(1, cycles // 4)),
        }
        rates = harness.interleave(work, repeats)
    parts = ("environment alone", "inference alone", "update alone")
    rates["serial limit"] = harness.serial_limit(*(rates[part] for part in parts))
    end_to_end = rates["end to end"]
    return Result(
        name=f"throughput, {config.agent.name} on {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios={
            "end to end / the same actors alone": end_to_end.over(rates["the same actors alone"]),
            "end to end / serial limit": end_to_end.over(rates["serial limit"]),
        },
        settings={
            "environments": config.actor.num_envs,
            "actors": num_actors,
            "T": config.actor.trajectory_length,
            "env steps": env_steps,
        },
    )


def _acting_alone(config: Config, ring: Ring, cycles: int) -> dict[str, Callable[[], int]]:
    """Return the work of environment and inference, fused or stepped as in the config."""
    environment = make_environment(config.env, num_envs=config.actor.num_envs, seed=0)
    row = environment.reset()
    agent, networks = ring.programs.agent, ring.learner.networks_on(ring.actors[0].device)
    length = config.actor.trajectory_length
    if config.actor.cycle != "stepped" and environment.fused() is not None:
        return {
            "environment alone": alone.scan_alone(environment, length, cycles),
            "inference alone": alone.infer_in_scan(agent, networks, row, length, cycles),
        }
    return {
        "environment alone": alone.step_alone(environment, length * cycles),
        "inference alone": alone.infer_alone(agent, networks, row, length * cycles),
    }


def main() -> None:
    """Run the benchmark."""
    rings.measure_config(__doc__, measure, env_steps=100_000)


if __name__ == "__main__":
    main()
