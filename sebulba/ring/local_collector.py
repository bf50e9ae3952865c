"""Acting in environments of this process."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.profiler import TraceAnnotation

from sebulba.agent_check import env_step_shapes
from sebulba.config import ActorConfig, RunConfig
from sebulba.envs.base import Environment, EnvironmentFault, Restartable
from sebulba.envs.closing import close_environments
from sebulba.envs.data_checks import check_structure
from sebulba.errors import PLACE, ConfigError, describe_error
from sebulba.pytree import leaf_name
from sebulba.ring.act_cycle import ActCycle, call_environment, init_carry, jit_on
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.clocks import COMPILE, ENVIRONMENT, MAKE_ENVIRONMENTS, WallClock
from sebulba.ring.collectors import StreamLost
from sebulba.ring.fused_cycle import FusedCycle
from sebulba.ring.records import ActCarry, Collected, Point, StreamStart
from sebulba.ring.whole_episodes import hold_final_row
from sebulba.toolkit.prng import environment_seed, stream
from sebulba.types import EnvironmentSpec, EnvStep, Networks, PyTree

_DEFAULTS = ActorConfig()
_CLOSE_TIMEOUT_S = RunConfig().close_timeout_s


class LocalCollector:
    """Acts in environments of this process.

    Environments outside JAX cannot be stored in a point. This collector keeps them from call to
    call as a cache. For a point elsewhere it makes new ones from the seed that the stream began
    with, and repeats the stream's actions.
    """

    max_kept_cycles = 0
    has_joined = True

    def __init__(
        self,
        make: Callable[[int], Environment],
        functions: ActFunctions,
        *,
        run_seed: int,
        global_actor_id: int,
        clock: WallClock,
        on_warning: Callable[[str], None],
        settings: ActorConfig = _DEFAULTS,
        where: str = "this environment",
        close_timeout_s: float = _CLOSE_TIMEOUT_S,
        environment: Environment | None = None,
    ):
        """Make the environments that an actor of a new run begins with.

        Args:
            make: makes the environments from a seed.
            functions: the jitted functions of the actor's device.
            run_seed: seeds all environments of the run.
            global_actor_id: the actor's number among all actors of all hosts.
            clock: the clock of the thread that calls `collect`.
            on_warning: takes one line of text.
            settings: `actor`, of which the kind of act cycle and the rollout are used.
            where: the environment's name, for errors and warnings.
            close_timeout_s: `run.close_timeout_s`, before environments are recreated.
            environment: the first environments; None: made here, by `make_first`.

        Raises:
            ConfigError: there is no such environment, or option of it.
            EnvironmentFault: its constructor failed.
        """
        self._make = make
        self.functions = functions
        self._run_seed = run_seed
        self._global_actor_id = global_actor_id
        self._clock = clock
        self._on_warning = on_warning
        self._settings = settings
        self._where = where
        self._close_timeout_s = close_timeout_s
        self.environment = environment or make_first(make, run_seed, global_actor_id)
        self._are_new = True  # the first environments, not reset yet
        # The act cycle over environments that have been reset, and the act cycles that they have
        # taken since their stream began; None: a cycle that failed left them anywhere.
        self.act_cycle: ActCycle | None = None
        self._is_at: tuple[int, StreamStart | None] | None = None

    @property
    def spec(self) -> EnvironmentSpec:
        """The spaces of a single environment."""
        return self.environment.spec

    @property
    def act_within(self) -> Callable[[Networks, ActCarry], Collected] | None:
        """The act cycle as a function to call inside `jit`; None: it is no such function."""
        return self.act_cycle.act_within if isinstance(self.act_cycle, FusedCycle) else None

    @property
    def acts_whole_episodes(self) -> bool:
        """Whether a trajectory is one episode of each environment."""
        return self._settings.rollout == "episodes"

    def begin(self, networks: Networks) -> Point:
        """Return the first point of a new run; see `Collector`."""
        with _as_fault("its reset", self._global_actor_id):
            env_step = self._reset()
        env_state = self._build_cycle(env_step)
        self._is_at = (0, None)
        carry = first_carry(
            self.functions,
            networks,
            env_step,
            run_seed=self._run_seed,
            global_actor_id=self._global_actor_id,
            env_state=env_state,
        )
        return Point(cycle=0, carry=carry)

    def wait(self) -> None:
        """Do nothing: it can always act."""

    def collect(self, networks: Networks, point: Point) -> Collected:
        """Act the cycle of a point; see `Collector`."""
        carry = point.carry
        if point.boundary is not None:
            carry = self._begin_stream(point)
        elif carry.env_state is None:
            if self._is_at != (point.cycle, point.stream):
                self._return_to(point)
        elif self.act_cycle is None:  # Any environments do: each cycle sets their state.
            self._recreate(point.stream)
        assert self.act_cycle is not None
        self._is_at = None
        with TraceAnnotation("act cycle"):
            collected = self.act_cycle(networks, carry)
        self._is_at = (point.cycle + 1, point.stream)
        return collected

    def interrupt(self) -> None:
        """Do nothing: it waits for nobody."""

    def close(self) -> None:
        """Release the environments; no cycle may be running."""
        self.environment.close()

    def _begin_stream(self, point: Point) -> ActCarry:
        """Recreate the environments; return the carry with their first row."""
        env_step, env_state = self._recreate(point.stream)
        tracker, num_envs = self.functions.tracker, env_step.reward.shape[0]
        return ActCarry(
            actor_state=point.carry.actor_state,
            env_step=env_step,
            statistics=jit_on(self.functions.device, lambda: tracker.init(num_envs))(),
            env_state=env_state,
        )

    def _return_to(self, point: Point) -> None:
        """Bring new environments to a point that they cannot be stored in.

        Raises:
            StreamLost: the stream's actions were not kept, or did not lead there.
        """
        actions = () if point.cycle == 0 else point.actions
        if actions is None:
            raise StreamLost("its earlier actions were not kept")
        env_step, _ = self._recreate(point.stream, actions)
        differing = _differing_leaf(env_step, point.carry.env_step)
        if differing is not None:
            raise StreamLost(
                f"repeating its actions led to another {differing}: the environments do not depend"
                " on their seed and actions alone"
            )

    def _recreate(
        self, start: StreamStart | None, actions: tuple[PyTree, ...] = ()
    ) -> tuple[EnvStep, PyTree]:
        """Put new environments in the place of the present ones; a bad `close` costs a warning.

        Args:
            start: seeds them; None: those of a new run.
            actions: the actions of the act cycles to repeat in them, each `[T, B]`.

        Returns:
            Their row `[B]`, and their complete state on the device; None if it cannot be stored.

        Raises:
            EnvironmentFault: the constructor, `reset` or `step` failed.
        """
        self._clock.begin(MAKE_ENVIRONMENTS)
        names: tuple[str | int, ...] = ()
        if start is not None:
            names = ("cycle", start.cycle)
            if start.attempt:
                names = (*names, "attempt", start.attempt)
        self._is_at = None
        try:
            if not self._are_new or names:
                closing = {f"actor {self._global_actor_id}": self.environment}
                for problem in close_environments(closing, self._close_timeout_s):
                    self._on_warning(str(problem))
                self.environment = self._make(
                    environment_seed(self._run_seed, "actor", self._global_actor_id, *names)
                )
            env_step = self._reset()
            for of_cycle in actions:
                env_step = self._repeat(env_step, of_cycle)
            self._clock.lap(ENVIRONMENT)
            self._clock.begin(COMPILE)  # environments on an accelerator are compiled to try them
            env_state = self._build_cycle(env_step)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"its constructor or reset raised {describe_error(error)}"
            ) from error
        self._clock.lap(ENVIRONMENT)
        return env_step, env_state

    def _reset(self) -> EnvStep:
        self._are_new = False
        env_step = self.environment.reset()
        shapes = env_step_shapes(self.functions.run_spec)
        if env_step.episode_over is not None:
            shapes = dataclasses.replace(shapes, episode_over=shapes.is_first)
        check_structure(env_step, shapes)
        return env_step

    def _repeat(self, env_step: EnvStep, actions: PyTree) -> EnvStep:
        """Take the env steps of an act cycle from its row 0; return its last row."""
        length = self.functions.run_spec.trajectory_length
        for row in range(1, length + 1):
            before, action = env_step, jax.tree.map(lambda leaf, t=row - 1: leaf[t], actions)
            env_step = call_environment("step", self.environment.step, action)
            if self.acts_whole_episodes:
                env_step = hold_final_row(before, env_step, is_last=row == length - 1)
                if env_step.done.all():  # Later rows repeat the final ones.
                    break
        if self.acts_whole_episodes:
            assert isinstance(self.environment, Restartable)
            env_step = call_environment("reset", self.environment.restart)
        return env_step

    def _build_cycle(self, env_step: EnvStep) -> PyTree:
        """Build the act cycle; return the environments' complete state, or None."""
        self.act_cycle, env_state = self.functions.act_cycle(
            self.environment,
            env_step,
            self._settings,
            where=self._where,
            clock=self._clock,
            on_warning=self._on_warning,
        )
        return env_state


def make_first(
    make: Callable[[int], Environment], run_seed: int, global_actor_id: int
) -> Environment:
    """Make the environments that an actor of a new run begins with.

    Args:
        make: makes environments from a seed.
        run_seed: seeds all environments of the run.
        global_actor_id: the actor's number among all actors of all hosts.

    Raises:
        ConfigError: there is no such environment, or option of it.
        EnvironmentFault: its constructor failed.
    """
    with _as_fault("its constructor", global_actor_id):
        return make(environment_seed(run_seed, "actor", global_actor_id))


def first_carry(
    functions: ActFunctions,
    networks: Networks,
    env_step: EnvStep,
    *,
    run_seed: int,
    global_actor_id: int,
    env_state: PyTree = None,
) -> ActCarry:
    """Return the carry of an actor's first cycle in a run.

    Args:
        functions: the jitted functions of the actor's device.
        networks: on this device.
        env_step: the row `[B]` of the environments' reset.
        run_seed: seeds all actors of the run.
        global_actor_id: the actor's number among all actors of all hosts.
        env_state: the environments' complete state; None: it cannot be stored.
    """
    return init_carry(
        functions.agent,
        networks,
        env_step,
        key=stream(jax.random.key(run_seed), "actor", global_actor_id),
        global_actor_id=global_actor_id,
        device=functions.device,
        tracker=functions.tracker,
        env_state=env_state,
    )


@contextlib.contextmanager
def _as_fault(what: str, global_actor_id: int) -> Iterator[None]:
    """Raise errors of the first environments as faults that name the actor."""
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:  # A constructor may exit.
        fault = error
        if not isinstance(error, EnvironmentFault):
            fault = EnvironmentFault(f"{what} raised {describe_error(error)}")
        fault.add_note(f"{PLACE} actor {global_actor_id}, before its first cycle.")
        raise fault from (None if fault is error else error)


def _differing_leaf(got: EnvStep, expected: EnvStep) -> str | None:
    """Return the name of the first leaf in which two rows differ in any bit; None: none does."""
    expected_leaves = jax.tree_util.tree_leaves_with_path(expected)
    for (path, leaf), other in zip(expected_leaves, jax.tree.leaves(got), strict=True):
        a, b = np.asarray(leaf), np.asarray(other)
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            return leaf_name(path)
    return None
