"""Measure acting and learning as one program, compared with threads in lock-step.

    python -m benchmarks.anakin [--num-envs 16 256 4096 16384] [--cycles 400] [--json FILE]

PPO on gymnax CartPole (pip install 'sebulba[gymnax]') with the settings that PureJaxRL is measured
with: 128 steps, 4 epochs of 4 minibatches, two hidden layers of 64. The limit beside it is acting
alone: the same act cycles in one program, with nothing learned.

With `--suite jax --id Catch-v0` it needs no extra. `python -m benchmarks.peers`
pairs it with PureJaxRL.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np

from benchmarks import harness, rings
from benchmarks.harness import Result, Timed
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig, RunConfig
from sebulba.ring.collectors import LocalCollector
from sebulba.ring.make import made_ring
from sebulba_agents.config import PPOConfig

_LENGTH = 128


def make_config(*, suite: str, env_id: str, num_envs: int, cycles: int) -> Config:
    """Return the config of a run of so many learner cycles, without the first few."""
    per_cycle = num_envs * _LENGTH
    return Config(
        env=EnvConfig(suite=suite, id=env_id),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(threads_per_device=1, num_envs=num_envs, trajectory_length=_LENGTH),
        learner=LearnerConfig(policy_lag=0),
        run=RunConfig(
            total_env_steps=cycles * per_cycle,
            log_interval_env_steps=max(1, cycles // 4) * per_cycle,
        ),
        agent=PPOConfig(
            hidden_sizes=(64, 64), num_epochs=4, num_minibatches=4, clip=0.2, value_clip=0.2
        ),
    )


def measure(config: Config, *, repeats: int) -> Result:
    """Measure env steps per second in both modes, and of acting alone."""

    def run(mode: Literal["threads", "anakin"]) -> Callable[[], Timed]:
        changed = dataclasses.replace(config.run, mode=mode)
        return lambda: rings.run_ring(dataclasses.replace(config, run=changed))

    per_cycle = config.actor.num_envs * _LENGTH
    rates = harness.interleave(
        {
            "anakin": run("anakin"),
            "threads in lock-step": run("threads"),
            "acting alone": ActingAlone(config, config.run.total_env_steps // per_cycle),
        },
        repeats,
    )
    anakin = rates["anakin"]
    return Result(
        name=f"anakin, {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios={
            "anakin / threads in lock-step": anakin.over(rates["threads in lock-step"]),
            "anakin / acting alone": anakin.over(rates["acting alone"]),
        },
        settings={"environments": config.actor.num_envs, "env steps": config.run.total_env_steps},
    )


class ActingAlone:
    """Work: act cycles in one program."""

    def __init__(self, config: Config, cycles: int):
        with made_ring(config) as ring:
            (actor,) = ring.actors
        assert isinstance(actor.collector, LocalCollector)
        act_within = actor.collector.act_within
        assert act_within is not None
        networks = ring.learner.networks_on(actor.device)

        def act(carry, num_cycles):
            def body(_, looped):
                carry, env_steps = looped
                collected = act_within(networks, carry)
                return collected.carry, env_steps + collected.tally.env_steps

            return jax.lax.fori_loop(0, num_cycles, body, (carry, np.int32(0)))

        self._act = jax.jit(act)
        self._carry = jax.device_put(actor.point.carry, actor.device)
        self._cycles = cycles

    def __call__(self) -> int:
        """Run the act cycles, and return the env steps."""
        self._carry, env_steps = jax.block_until_ready(self._act(self._carry, self._cycles))
        return int(env_steps)


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--suite", default="gymnax", help="a suite of JAX environments")
    parser.add_argument("--id", default="CartPole-v1", help="environment")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[16, 256, 4096, 16384])
    parser.add_argument("--cycles", type=int, default=400, help="learner cycles per repeat")
    arguments = parser.parse_args()
    harness.compile_once()
    results = [
        measure(
            make_config(
                suite=arguments.suite,
                env_id=arguments.id,
                num_envs=num_envs,
                # At least four, since the first row of metrics is not part of the rate.
                cycles=max(4, arguments.cycles * 16 // num_envs),
            ),
            repeats=arguments.repeats,
        )
        for num_envs in arguments.num_envs
    ]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
