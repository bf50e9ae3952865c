"""IMPALA learns Catch in a ring that is put together by hand, as `sebulba train` does it.

    python examples/ring_by_hand.py

Two actors act with networks that are exactly one learner cycle old. Everything runs in this thread;
`sebulba.ring.running.run(ring, mode="threads")` would give each actor and the learner its own.
"""

import jax

from sebulba.config import EnvConfig, RunConfig
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.envs import make_environment
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.actor import Actor
from sebulba.ring.clocks import WallClock
from sebulba.ring.learner import Learner, LearnerPrograms
from sebulba.ring.local_collector import LocalCollector
from sebulba.ring.ring import Ring
from sebulba.ring.schedule import Schedule
from sebulba.toolkit.prng import stream
from sebulba.types import RunSpec
from sebulba_agents.config import ImpalaConfig
from sebulba_agents.impala import make_impala

NUM_ACTORS, NUM_ENVS, SEED = 2, 16, 0


# Environments: a function from a seed to a batch of them.
def make_batch(seed):
    catch = EnvConfig(suite="jax", id="Catch-v0")
    return make_environment(catch, num_envs=NUM_ENVS, seed=seed)


# The agent: pure functions, made for the spaces and the numbers of the run.
goal = RunConfig(total_env_steps=160_000, stop_at_return=0.95)
run_spec = RunSpec(
    environment=make_batch(SEED).spec,
    num_envs=NUM_ENVS,
    num_actors=NUM_ACTORS,
    num_learner_devices=1,
    trajectory_length=20,
    trajectories_per_cycle=1,
    total_env_steps=goal.total_env_steps,
)
agent = make_impala(
    ImpalaConfig(
        network="mlp",
        hidden_sizes=(64, 64),
        loss_reduction="mean",
        optimizer="adam",
        learning_rate=1e-3,
        adam_epsilon=1e-5,
        max_grad_norm=0.5,
    ),
    run_spec,
)

# The learner: maps the agent's update over the learner devices.
device = jax.local_devices()[0]
devices = LearnerDevices([device])
programs = LearnerPrograms(agent=agent, learner_devices=devices, num_streams_per_device=NUM_ENVS)
key = stream(jax.random.key(SEED), "learner")
learner = Learner(programs, key=key, clock=WallClock())

# Two actors: each has a collector, which acts, and a point, where it continues.
functions, actors = ActFunctions(agent, run_spec, device=device), []
for i in range(NUM_ACTORS):
    clock = WallClock()
    collector = LocalCollector(
        make_batch, functions, run_seed=SEED, global_actor_id=i, clock=clock, on_warning=print
    )
    actor = Actor(
        actor_id=i,
        collector=collector,
        point=collector.begin(learner.networks_on(device)),
        agent=agent,
        device=device,
        learner_devices=devices,
        clock=clock,
    )
    actors.append(actor)

# The ring: the order in which they act, are learned from, and get new networks.
schedule = Schedule(num_actors=NUM_ACTORS, trajectories_per_cycle=1, policy_lag=1)
ring = Ring(learner, actors, schedule, goal)
ring.publish()
while not ring.end.is_set:
    ring.act(learner.num_cycles % NUM_ACTORS)
    ring.learn(ring.take())
    if learner.num_cycles % 50 == 0 or ring.end.is_set:
        progress = ring.progress
        print(f"{progress.env_steps:7,} env steps, mean return {progress.window.return_mean}")
ring.close()
ring.close_environments()
