"""Measure updates per second inside the running framework, and in a bare jitted loop.

    python -m benchmarks.learner [--torsos mlp dqn shallow deep] [--updates 1 4 64] [--json FILE]

Inside, the learner's thread runs as in training, with deques, publishing and progress. It gets the
same trajectories repeatedly, so that no actor competes for the cores. The bare loop is a plain
jitted gradient step on the same batch.
"""

import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from benchmarks import harness, rings
from benchmarks.harness import Result, Timed
from benchmarks.policy_gradient import PolicyGradientConfig
from sebulba.agent import Agent
from sebulba.config import Config
from sebulba.ring.deques import Closed
from sebulba.ring.make import made_ring
from sebulba.ring.records import Delivery
from sebulba.ring.ring import Ring
from sebulba.types import Clock, PyTree, Trajectory


def make_config(*, torso: str, num_envs: int, updates: int) -> Config:
    """Return the config of a run whose environments take no time."""
    settings: dict[str, Any] = {"torso": torso, "updates_per_cycle": updates}
    agent = PolicyGradientConfig(**settings)
    return rings.canned_config(agent, num_envs=num_envs, image=torso != "mlp")


def measure(*, torso: str, num_envs: int, updates: int, cycles: int, repeats: int) -> Result:
    """Measure updates per second inside the framework and in a bare loop."""
    config = make_config(torso=torso, num_envs=num_envs, updates=updates)

    def of_cycle(name: Literal["one_program", "update_by_update"]) -> Config:
        return dataclasses.replace(config, learner=dataclasses.replace(config.learner, cycle=name))

    rates = harness.interleave(
        {
            "inside the framework": lambda: inside(config, cycles=cycles),
            "in one program": lambda: inside(of_cycle("one_program"), cycles=cycles),
            "update by update": lambda: inside(of_cycle("update_by_update"), cycles=cycles),
            "bare loop": BareLoop(config, num_updates=updates * cycles),
        },
        repeats,
    )
    return Result(
        name=f"learner, {torso}",
        unit="updates/s",
        rates=rates,
        ratios={
            "inside / bare": rates["inside the framework"].over(rates["bare loop"]),
            "in one program / update by update": rates["in one program"].over(
                rates["update by update"]
            ),
        },
        settings={
            "rows a batch": num_envs * config.actor.trajectory_length,
            "updates a cycle": updates,
            "cycles": cycles,
        },
    )


def inside(config: Config, *, cycles: int) -> Timed:
    """Run the learner of a new ring, which another thread feeds with one trajectory."""
    with made_ring(config) as ring:
        (item,) = rings.act_one_cycle(ring)
        feeder = threading.Thread(target=_feed, args=(ring, item), daemon=True)
        feeder.start()
        ring.learner.clock.restart()
        ring.publish()
        # The first cycle compiles, and is not part of the rate.
        for _ in range(cycles + 1):
            ring.learn(ring.take())
    feeder.join()
    updates_per_step = config.agent.updates_per_cycle / item.info.env_steps
    return Timed(amount=ring.progress.steps_per_second * updates_per_step, seconds=1.0)


def _feed(ring: Ring, item: Delivery) -> None:
    try:
        for number in itertools.count():
            ring.ledger.collect(0, item.info.env_steps)
            info = dataclasses.replace(item.info, sequence_number=number)
            ring.trajectories.put(dataclasses.replace(item, info=info))
    except Closed:
        pass


class BareLoop:
    """Work: repeat a plain jitted gradient step on one batch."""

    def __init__(self, config: Config, *, num_updates: int):
        with made_ring(config) as ring:
            (item,) = rings.act_one_cycle(ring)
        agent = ring.programs.agent
        networks = agent.init_networks(jax.random.key(0))
        experience = agent.update_experience(
            networks,
            agent.init_experience(networks, config.actor.num_envs),
            item.unroll.initial_state,
            item.unroll.final_state,
            item.unroll.trajectory,
            jnp.int32(0),
        )
        self._state = (networks, agent.init_opt_state(networks))
        self._step = jax.jit(_gradient_step(agent, experience), donate_argnums=0)
        self._trajectory: Trajectory = item.unroll.trajectory
        self._num_updates = num_updates

    def __call__(self) -> int:
        """Take the steps, with at most two in flight, and return their number."""
        previous = None
        for _ in range(self._num_updates):
            self._state, loss = self._step(self._state, self._trajectory)
            if previous is not None:
                jax.block_until_ready(previous)
            previous = loss
        jax.block_until_ready(self._state)
        return self._num_updates


def _gradient_step(agent: Agent, experience: PyTree) -> Callable[[PyTree, Trajectory], PyTree]:
    def step(state: PyTree, trajectory: Trajectory) -> tuple[PyTree, jax.Array]:
        networks, opt_state = state
        batch = dataclasses.replace(experience, trajectory=trajectory)
        loss = jax.value_and_grad(agent.loss, has_aux=True)
        clock = Clock.at()
        (value, _), grads = loss(networks, batch, jax.random.key(0), clock)
        return agent.optimize(networks, opt_state, grads, batch, clock), value

    return step


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("--torsos", nargs="+", default=["mlp", "dqn", "shallow", "deep"])
    parser.add_argument("--updates", nargs="+", type=int, default=[1, 4, 64], help="per cycle")
    arguments = parser.parse_args()
    harness.compile_once()
    results = [
        measure(
            torso=torso,
            num_envs={"mlp": 192, "deep": 4}.get(torso, 16),
            updates=updates,
            cycles=max(2, (400 if torso == "mlp" else 4) // updates),
            repeats=arguments.repeats,
        )
        for torso in arguments.torsos
        for updates in arguments.updates
    ]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
