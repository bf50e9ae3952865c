"""Act cycles: fused and stepped give the same rows, in place, compiled once."""

import dataclasses
import functools
import gc
import threading
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices, fetch_replicated
from sebulba.envs import make_environment
from sebulba.ring.clocks import WallClock
from sebulba.ring.fused_cycle import FusedCycle, FusedFunctions
from sebulba.types import EnvironmentSpec, EnvStep, Trajectory
from tests.envs.masked import expected_masks
from tests.ring_parts import (
    act_cycle,
    append_to_rows,
    collect_donated,
    compilations,
    first_carry,
    shared_programs,
)
from tests.toys import ToyAgent, ToyConfig, toy_run_spec

NUM_ENVS, LENGTH = 3, 7
CATCH = EnvConfig(suite="jax", id="Catch-v0")
CARTPOLE = EnvConfig(suite="envpool", id="CartPole-v1", options={"max_episode_steps": 11})
MASKED = EnvConfig(suite="jax", id="tests.envs.masked:MaskedTask")
GYMNASIUM = EnvConfig(suite="gymnasium", id="CartPole-v1")


class Cycles:
    """An act cycle, its carry and its environment."""

    def __init__(
        self,
        env_config,
        kind,
        device=None,
        *,
        length=LENGTH,
        whole_episodes=False,
        agent_class=ToyAgent,
    ):
        device = device or jax.devices()[0]
        self.environment = make_environment(env_config, num_envs=NUM_ENVS, seed=5)
        spec: EnvironmentSpec = self.environment.spec
        agent = agent_class(ToyConfig(), toy_run_spec(environment=spec, num_envs=NUM_ENVS))
        self.networks = jax.device_put(agent.init_networks(jax.random.key(2)), device)
        self.carry = first_carry(
            agent,
            self.networks,
            self.environment.reset(),
            key=jax.random.key(3),
            device=device,
        )
        self.act_cycle = act_cycle(
            agent,
            self.environment,
            self.networks,
            self.carry,
            fused=kind == "fused",
            length=length,
            device=device,
            whole_episodes=whole_episodes,
        )

    def run(self):
        self.carry, result = self.act_cycle(self.networks, self.carry)
        return result


@functools.cache
def played(kind):
    """Return the results of four cycles on CartPole, and the networks."""
    cycles = Cycles(CARTPOLE, kind)
    return [cycles.run() for _ in range(4)], cycles.networks


@pytest.mark.parametrize(("env_config", "is_kept"), [(CATCH, True), (CARTPOLE, False)])
def test_environments_with_the_same_step_share_the_functions_while_in_use(env_config, is_kept):
    spec = Cycles(env_config, "stepped").environment.spec
    agent = ToyAgent(ToyConfig(), toy_run_spec(environment=spec, num_envs=NUM_ENVS))
    programs_of = shared_programs(agent, length=LENGTH, device=jax.devices()[0])

    def programs():
        environment = make_environment(env_config, num_envs=NUM_ENVS, seed=5)
        environment.reset()
        return programs_of(environment.fused())

    first, second = programs(), programs()
    assert first is second
    kept = [weakref.ref(first), weakref.ref(second)]
    del first, second
    gc.collect()
    # Those of JAX environments are kept for the next ring; EnvPool's would keep a pool alive.
    assert [each() is not None for each in kept] == [is_kept, is_kept]


@pytest.mark.parametrize("env_config", [CATCH, CARTPOLE], ids=lambda config: config.id)
def test_actors_that_share_functions_compile_them_once(env_config):
    actors = [Cycles(env_config, "fused") for _ in range(2)]
    functions = FusedFunctions(
        ToyAgent(
            ToyConfig(), toy_run_spec(environment=actors[0].environment.spec, num_envs=NUM_ENVS)
        ),
        actors[0].environment.fused().step,
        trajectory_length=LENGTH,
        device=jax.devices()[0],
    )
    barrier, compiled = threading.Barrier(2), []

    def count(event, seconds, **names):
        if event.endswith("backend_compile_duration") and names.get("fun_name") == "jit(cycle)":
            compiled.append(seconds)

    def act(cycles):
        cycle = FusedCycle(functions, cycles.environment.fused(), clock=WallClock())
        barrier.wait()
        cycle(cycles.networks, cycles.carry)

    threads = [threading.Thread(target=act, args=(cycles,)) for cycles in actors]
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert len(compiled) == 1


@pytest.mark.parametrize("env_config", [CATCH, MASKED, CARTPOLE], ids=lambda config: config.id)
def test_fused_and_stepped_cycles_give_the_same_trajectories(env_config):
    fused, stepped = Cycles(env_config, "fused"), Cycles(env_config, "stepped")
    for _ in range(4):
        chex.assert_trees_all_equal(fused.run(), stepped.run())


@pytest.mark.parametrize("rows_together", [2, 64])
def test_rows_that_are_written_together_are_those_of_one_row_a_turn(rows_together):
    cycles = Cycles(CATCH, "fused")
    spec, fused = cycles.environment.spec, cycles.environment.fused()
    agent = ToyAgent(ToyConfig(), toy_run_spec(environment=spec, num_envs=NUM_ENVS))
    expected, got = (
        FusedFunctions(
            agent,
            fused.step,
            trajectory_length=5,  # two turns and a row, and a turn alone
            device=jax.devices()[0],
            rows_together=each,
        ).cycle(cycles.networks, cycles.carry, fused.state)
        for each in (1, rows_together)
    )
    chex.assert_trees_all_equal(got, expected)


def test_trajectories_carry_the_action_mask_of_each_row():
    rows = Cycles(MASKED, "stepped").run().trajectory.env_steps
    np.testing.assert_array_equal(rows.action_mask, expected_masks(jax.tree.map(np.asarray, rows)))


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_the_last_row_is_the_next_trajectorys_first(kind):
    first, second, *_ = (result.trajectory.env_steps for result in played(kind)[0])
    chex.assert_trees_all_equal(
        jax.tree.map(lambda x: x[-1], first), jax.tree.map(lambda x: x[0], second)
    )


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_a_row_holds_an_env_step_and_the_action_selected_from_it(kind):
    """Every row's logits are the network's on that row's observation, resets included."""
    results, networks = played(kind)
    trajectories = [result.trajectory for result in results]
    count = np.concatenate([trajectory.extras["count"] for trajectory in trajectories])
    rows = [trajectory.env_steps for trajectory in trajectories]
    observation = np.concatenate([row.observation[:-1] for row in rows])
    logits = np.concatenate([trajectory.extras["logits"] for trajectory in trajectories])
    np.testing.assert_allclose(logits, observation @ networks["weights"], rtol=1e-4)
    is_first = np.concatenate([row.is_first[:-1] for row in rows])
    assert is_first[1:].any(), "episodes of at most 11 steps end within 28 rows"
    assert (count[is_first] == 1).all(), "the recurrent state is zeroed at a reset"
    continued = ~is_first[1:]
    np.testing.assert_array_equal(count[1:][continued], count[:-1][continued] + 1)


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_states_are_those_before_row_0_and_after_the_last_action(kind):
    previous_final = np.zeros(NUM_ENVS, np.int32)
    for result in played(kind)[0]:
        is_first = np.asarray(result.trajectory.env_steps.is_first[0])
        expected = np.where(is_first, 0, previous_final) + 1
        np.testing.assert_array_equal(result.trajectory.extras["count"][0], expected)
        previous_final = np.asarray(result.final_state.count)
        np.testing.assert_array_equal(previous_final, result.trajectory.extras["count"][-1])


def test_a_stepped_cycle_donates_its_copy_of_the_actor_state_and_its_buffer():
    cycles = Cycles(CARTPOLE, "stepped")
    begun = collect_donated(cycles.act_cycle)
    cycles.run()
    cycles.run()
    assert len(begun) == 2
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(begun))


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_neither_the_carry_nor_the_results_are_donated(kind):
    cycles = Cycles(CARTPOLE, kind)
    carries, results = [cycles.carry], []
    for _ in range(2):
        results.append(cycles.run())
        carries.append(cycles.carry)
    leaves = [leaf for leaf in jax.tree.leaves((carries, results)) if isinstance(leaf, jax.Array)]
    assert not any(leaf.is_deleted() for leaf in leaves)


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_a_cycle_can_be_repeated_from_its_carry(kind):
    """As after a fault; the environment continues, so only the actor state is compared."""
    cycles = Cycles(CATCH, kind)
    cycles.run()
    before = cycles.carry
    first = cycles.act_cycle(cycles.networks, before)
    second = cycles.act_cycle(cycles.networks, before)
    chex.assert_trees_all_equal(first[1].final_state, second[1].final_state)
    chex.assert_trees_all_equal(
        jax.tree.map(lambda rows: rows[0], first[1].trajectory.env_steps),
        jax.tree.map(lambda rows: rows[0], second[1].trajectory.env_steps),
    )


class TracedAgent(ToyAgent):
    """Counts how often acting is traced; its state follows from the networks."""

    num_traces = 0

    def act(self, networks, actor_state, env_step, *, greedy):
        TracedAgent.num_traces += 1
        action, extras, state = super().act(networks, actor_state, env_step, greedy=greedy)
        return action, extras, dataclasses.replace(state, count=state.count + 0 * action)


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_acting_is_traced_once_with_the_networks_of_a_single_learner_device(kind):
    """Their types name the learner's mesh, and those of an actor's first state do not."""
    device = jax.devices()[1]
    cycles = Cycles(CARTPOLE, kind, device=device, agent_class=TracedAgent)
    sharding = LearnerDevices([device]).sharding(REPLICATED)
    networks = jax.jit(lambda networks: networks, out_shardings=sharding)(cycles.networks)
    cycles.networks = fetch_replicated(networks, device)
    TracedAgent.num_traces = 0
    cycles.run()
    for _ in range(2):
        cycles.run()
    assert TracedAgent.num_traces == 1


@pytest.mark.parametrize("kind", ["fused", "stepped"])
@pytest.mark.parametrize("env_config", [CATCH, CARTPOLE], ids=lambda config: config.suite)
def test_each_function_is_compiled_once(env_config, kind):
    cycles = Cycles(env_config, kind, device=jax.devices()[1])
    for _ in range(4):
        cycles.run()
    assert set(compilations(cycles.act_cycle)) == {1}


@pytest.mark.parametrize(
    ("env_config", "kind"), [(CATCH, "fused"), (CARTPOLE, "fused"), (GYMNASIUM, "stepped")]
)
def test_everything_stays_on_the_actors_device(env_config, kind):
    device = jax.devices()[2]
    cycles = Cycles(env_config, kind, device=device)
    cycles.run()
    result = cycles.run()
    chex.assert_tree_is_on_device(result, device=device)


def test_env_steps_exclude_reset_steps():
    cycles = Cycles(CATCH, "fused")  # Catch's episodes are 9 steps, and 1 to reset
    results = [cycles.run() for _ in range(10)]
    done = np.concatenate([result.trajectory.env_steps.done[:-1] for result in results])
    assert done.sum() == 7 * NUM_ENVS
    assert sum(int(result.env_steps) for result in results) == (10 * LENGTH - 7) * NUM_ENVS


def test_dtypes_of_rows_are_those_of_the_contract():
    env_steps = Cycles(GYMNASIUM, "stepped").run().trajectory.env_steps
    assert env_steps.reward.dtype == jnp.float32
    assert {env_steps.terminated.dtype, env_steps.truncated.dtype, env_steps.is_first.dtype} == {
        jnp.dtype(bool)
    }
    assert env_steps.observation.shape == (LENGTH + 1, NUM_ENVS, 4)


def test_empty_leaves_and_keys_are_written_like_any_other():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    extras = {"key": jax.random.split(jax.random.key(1), 3), "nothing": jnp.ones((3, 0))}
    rows = {"key": keys, "nothing": jnp.zeros((2, 3, 0))}
    no, nothing = jnp.zeros((2, 3), bool), jnp.zeros((2, 3, 0))
    env_steps = EnvStep(
        observation=nothing, reward=jnp.zeros((2, 3)), terminated=no, truncated=no, is_first=no
    )
    trajectory = Trajectory(env_steps=env_steps, action=jnp.zeros((2, 3), jnp.int32), extras=rows)
    written, num_rows = append_to_rows(trajectory, 1, jnp.full(3, 7, jnp.int32), extras)
    assert written.action.tolist() == [[0, 0, 0], [7, 7, 7]]
    assert (written.extras["key"] == jnp.stack([keys[0], extras["key"]])).all()
    assert num_rows == 2
