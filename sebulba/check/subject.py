"""The subject of the checks: a ring assembled as for a run, on probe environments."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import jax

from sebulba.agent import Agent
from sebulba.agent_check import MAX_CYCLES_WITHOUT_UPDATE
from sebulba.check.capture import CaptureConfig, CapturingAgent
from sebulba.check.probe import ProbeEnvironment, probe_config
from sebulba.check.settings import settings_of, with_settings
from sebulba.check.sizes import differences, is_large, smaller
from sebulba.config import Config, LearnerConfig
from sebulba.config.agents import make_agent
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.devices.memory import MemoryPlan
from sebulba.devices.roles import Roles, assign_devices
from sebulba.errors import ConfigError
from sebulba.evaluation.stored import read_environment_spec
from sebulba.ring.clocks import WallClock
from sebulba.ring.learner import Learner, LearnerPrograms
from sebulba.ring.local_collector import LocalCollector
from sebulba.ring.make import make_ring
from sebulba.ring.programs import make_programs
from sebulba.ring.ring import Ring
from sebulba.types import ActorState, PyTree, RunSpec

_MIN_THREADS = 2  # two actors are needed to find what they share


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """An assembled ring with probe environments and a `CapturingAgent`."""

    config: Config  # the run's config, with the probe as environment
    run_spec: RunSpec
    agent: Agent  # the captured agent itself
    ring: Ring
    probes: tuple[ProbeEnvironment, ...]  # one for each actor
    start_states: tuple[ActorState, ...]  # one for each actor, before row 0 of its stream
    smaller_sizes: tuple[str, ...]  # keys and values that differ from the run's
    memory_plan: MemoryPlan  # memory of a run, without the recorded arguments
    num_players: int = 1  # of the run's environment; each is an environment of the probe

    def agent_on(
        self, num_learner_devices: int, *, num_envs: int | None = None, **settings: Any
    ) -> tuple[Agent, RunSpec]:
        """Build the agent, and its run spec, for another number of learner devices.

        Args:
            num_learner_devices: of the run spec.
            num_envs: of the run spec; None: the run's.
            settings: of the agent; those that it does not have are ignored.

        Raises:
            ConfigError: the agent refuses the settings.
        """
        try:
            config = with_settings(self.config.agent, **settings)
        except (TypeError, ValueError) as error:  # of a dataclass that validates its fields
            raise ConfigError(str(error)) from error
        run_spec = dataclasses.replace(
            self.run_spec,
            num_learner_devices=num_learner_devices,
            num_envs=num_envs or self.run_spec.num_envs,
        )
        return make_agent(config, run_spec), run_spec

    def learner(self, agent: Agent, devices: Sequence[jax.Device]) -> Learner:
        """Build a learner of an agent on these learner devices."""
        programs = LearnerPrograms(
            agent=agent,
            learner_devices=LearnerDevices(devices),
            num_streams_per_device=self.run_spec.num_streams // len(devices),
            config=LearnerConfig(mapping=self.config.learner.mapping),
        )
        return Learner(programs, key=jax.random.key(self.config.seed), clock=WallClock())

    def close(self) -> None:
        """Close the ring's environments."""
        self.ring.close_environments()

    def setting(self, *names: str) -> Any:
        """Return the agent's first setting with one of these names; None: no such."""
        found = (value for name, value in settings_of(self.config.agent) if name in names)
        return next(found, None)

    @functools.cached_property
    def first_learning_cycle(self) -> int | None:
        """The first learner cycle with an update; None: none in the first 1,000."""
        counts = map(self.agent.num_updates_per_cycle, range(MAX_CYCLES_WITHOUT_UPDATE))
        return next((cycle for cycle, count in enumerate(counts) if count), None)

    @property
    def updates_per_cycle(self) -> int:
        """The number of updates in the first learner cycle that has any; 0: none has."""
        return self.agent.num_updates_per_cycle(self.first_learning_cycle or 0)

    @property
    def reward_clip(self) -> float | None:
        """The setting `reward_clip`, beyond which rewards are the same to the agent."""
        clip = self.setting("reward_clip")
        return clip if isinstance(clip, float) else None

    @property
    def discounts(self) -> list[float]:
        """Every discount factor: an agent may have one for each of its value functions."""
        return self._numbers("discount", "gamma")

    @property
    def lambdas(self) -> list[float]:
        """Every λ of the returns: policy and values may have one each."""
        return self._numbers("lambda")

    def _numbers(self, *words: str) -> list[float]:
        """Return the agent's floats with one of these words, or its plural, in their names.

        Words are between underscores. Floats in tuples count as well.
        """

        def is_meant(name: str) -> bool:
            return any(part.removesuffix("s") in words for part in name.split("_"))

        found = (
            value if isinstance(value, tuple) else (value,)
            for name, value in settings_of(self.config.agent)
            if is_meant(name)
        )
        return [each for values in found for each in values if isinstance(each, float)]


def assemble_subject(config: Config) -> Subject:
    """Assemble the ring of a config, in serial mode and with probes as environments.

    A config with one actor thread gets a second one, and smaller sizes, if the agent's settings
    allow it.

    Raises:
        ConfigError: devices, environment or agent cannot be built from the config.
        AgentError: the agent breaks the protocol.
    """
    spec = read_environment_spec(config.env)
    # An agent sees rows alone: each player is an environment of the probe, and opponents are part
    # of the environment.
    num_players = spec.num_players
    num_envs = config.actor.num_envs * num_players
    spec = dataclasses.replace(spec, num_players=1, opponents=None)
    run = dataclasses.replace(
        config,
        env=probe_config(spec, config.actor.trajectory_length),
        # Episode rollouts truncate and mask streams; the probe's rows would not be predictable.
        actor=dataclasses.replace(config.actor, num_envs=num_envs, rollout="steps"),
        run=dataclasses.replace(config.run, mode="serial", stop_at_return=None),
    )
    # That of a run, with all its sizes, whose agent is not captured.
    programs = make_programs(run, _roles(run), spec)
    networks = jax.eval_shape(programs.agent.init_networks, jax.random.key(0))
    candidates = [
        threaded
        for each in smaller(
            run,
            programs.run_spec,
            num_players=num_players,
            has_large_networks=is_large(networks, spec),
        )
        for threaded in (_with_threads(each), each)
    ]
    for number, candidate in enumerate(candidates):
        probe = probe_config(spec, candidate.actor.trajectory_length)
        small = dataclasses.replace(candidate, env=probe)
        built: list[CapturingAgent] = []
        try:
            ring = _assemble(small, built)
        except Exception:
            if number == len(candidates) - 1:
                raise
        else:
            break
    return Subject(
        config=small,
        smaller_sizes=differences(run, small),
        run_spec=built[0].run_spec,
        agent=built[0].captured,
        ring=ring,
        probes=tuple(
            cast(ProbeEnvironment, cast(LocalCollector, actor.collector).environment)
            for actor in ring.actors
        ),
        start_states=tuple(actor.point.carry.actor_state for actor in ring.actors),
        memory_plan=programs.memory_plan,
        num_players=num_players,
    )


def _with_threads(config: Config) -> Config:
    threads = max(_MIN_THREADS, config.actor.threads_per_device)
    return dataclasses.replace(
        config, actor=dataclasses.replace(config.actor, threads_per_device=threads)
    )


def _assemble(config: Config, built: list[CapturingAgent]) -> Ring:
    captured = CaptureConfig(captured=config.agent, built=built)
    return make_ring(dataclasses.replace(config, agent=captured), devices=_roles(config))


def _roles(config: Config) -> Roles:
    local = jax.local_devices()
    if config.devices.actor is None and config.devices.learner is None:
        # Virtual CPU devices serve the comparison of updates alone, not the ring.
        local = _real_devices()
    return assign_devices(config.devices, local, num_envs=config.actor.num_envs)


def _real_devices() -> list[jax.Device]:
    devices = jax.local_devices()
    return devices[:1] if devices[0].platform == "cpu" else devices


def env_axes(agent: Agent, run_spec: RunSpec) -> PyTree:
    """Return the environment axis of each leaf of the actor state; -1: not per environment.

    It is the axis that grows with the number of environments.
    """
    few, many = (
        jax.eval_shape(lambda key, n=n: _actor_state(agent, n, key), jax.random.key(0))
        for n in (run_spec.num_streams, 2 * run_spec.num_streams)
    )

    def axis(few: jax.ShapeDtypeStruct, many: jax.ShapeDtypeStruct) -> int:
        sizes = zip(few.shape, many.shape, strict=True)
        return next((i for i, (a, b) in enumerate(sizes) if a != b), -1)

    return jax.tree.map(axis, few, many)


def _actor_state(agent: Agent, num_envs: int, key: jax.Array) -> ActorState:
    networks = agent.actor_networks(agent.init_networks(key))
    return agent.init_actor_state(networks, num_envs, key, 0)
