"""The process that acts. It holds nothing that the run needs, and may be killed at any moment.

Importing this imports no jax: what the backend reads is set first.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sebulba.errors import ConfigError
from sebulba.processes.cores import take_least_used_cores
from sebulba.remote import failures

if TYPE_CHECKING:
    from sebulba.remote.wire import Arrays, Record

    Answer = tuple[Record, Arrays | None, Arrays | None]


class ActingProcess:
    """Acts the cycles of one actor when it is asked to.

    Each method returns a record that says how the call ended, and two lists of arrays or None. It
    raises nothing: what it raised would cross as an object.
    """

    def __init__(self) -> None:
        self._warnings: list[str] = []
        self._collector: Any = None
        self._like: Any = None  # the shapes of networks, carry and actions

    def set_up(self, settings: "Record") -> "Answer":
        """Make environments and act functions, before any other call; return the kind of CPU.

        Args:
            settings: of the learner's host: `config`, YAML; `actor`, the actor's number among all
                actors of all hosts; `num_actors` and `num_learner_devices` of a host; `num_hosts`;
                `software`, config and versions, which have to be equal; `num_cpus`,
                or None to stay on all; `uses_gpu`.
        """
        return self._answer(lambda: self._set_up(settings))

    def begin(self, networks: "Arrays") -> "Answer":
        """Return a new run's first carry, before `collect` in every run.

        Args:
            networks: the leaves of the actor's networks.
        """
        return self._answer(lambda: self._begin(networks), needs_set_up=True)

    def collect(
        self,
        networks: "Arrays",
        numbers: "Record",
        carry: "Arrays",
        actions: "list[Arrays] | None",
    ) -> "Answer":
        """Act the cycle of a point; return the tally in the record, the carry and the trajectory.

        Args:
            networks: the leaves of the actor's networks.
            numbers: of the point, like the next two; see `wire.pack_point`.
            carry: its arrays.
            actions: of the stream so far.
        """

        def collect() -> "Answer":
            from sebulba.remote import wire

            of_networks, of_carry, of_action = self._like
            point = wire.unpack_point(numbers, carry, actions, like=of_carry, action=of_action)
            unpacked = wire.unpack(networks, like=of_networks, what="networks")
            collected = self._collector.collect(unpacked, point)
            tally, after, trajectory = wire.pack_collected(collected)
            return {"tally": tally}, after, trajectory

        return self._answer(collect, needs_set_up=True)

    def _answer(self, work: "Callable[[], Answer]", *, needs_set_up: bool = False) -> "Answer":
        if needs_set_up and self._collector is None:
            return {"end": failures.NOT_SET_UP, **_place()}, None, None
        try:
            record, first, second = work()
            record["end"] = failures.DONE
        except BaseException as error:  # An environment may exit.
            record, first, second = failures.describe(error), None, None
        record |= {"warnings": self._warnings.copy(), **_place()}
        self._warnings.clear()  # The same list, which the collector writes to.
        return record, first, second

    def _set_up(self, settings: "Record") -> "Answer":
        if settings["num_cpus"] is not None:
            take_least_used_cores(settings["num_cpus"])  # Ray counts CPUs, and binds nothing.
        if not settings["uses_gpu"]:
            os.environ["JAX_PLATFORMS"] = "cpu"  # JAX finds GPUs that Ray gave to nobody.
        import jax

        from sebulba.config.loading import load_config
        from sebulba.config.run_spec import make_run_spec
        from sebulba.devices.compilation_cache import use_compilation_cache
        from sebulba.devices.known_answers import check_compiler
        from sebulba.ring.clocks import WallClock
        from sebulba.ring.local_collector import make_first
        from sebulba.ring.make import environment_maker, make_local_collector
        from sebulba.ring.programs import make_act_functions
        from sebulba.storage.fingerprint import describe_cpu
        from sebulba.storage.run_dir import describe_software

        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(settings["config"])
            file.flush()
            config = load_config(file.name)
        own, number = describe_software(config), settings["actor"]
        for name, value in settings["software"].items():
            if own.get(name) != value:
                raise ConfigError(
                    f"expected {name} of the learner's host, {value}, got {own.get(name)}"
                )
        use_compilation_cache()
        check_compiler()
        first = make_first(environment_maker(config, number), config.seed, number)
        run_spec = make_run_spec(
            config,
            first.spec,
            settings["num_actors"],
            settings["num_learner_devices"],
            num_hosts=settings["num_hosts"],
        )
        functions = make_act_functions(config, run_spec, jax.local_devices()[0])
        collector = make_local_collector(
            config,
            functions,
            global_actor_id=number,
            clock=WallClock(),
            on_warning=self._warnings.append,
            environment=first,
        )
        self._collector = collector
        return {"cpu": describe_cpu()}, None, None

    def _begin(self, networks: "Arrays") -> "Answer":
        import jax

        from sebulba.remote import wire

        functions = self._collector.functions
        agent = functions.agent
        of_networks = jax.eval_shape(
            lambda key: agent.actor_networks(agent.init_networks(key)), jax.random.key(0)
        )
        unpacked = wire.unpack(networks, like=of_networks, what="networks")
        carry = self._collector.begin(unpacked).carry
        of_action = functions.shapes(unpacked, carry).trajectory.action
        self._like = of_networks, jax.eval_shape(lambda: carry), of_action
        return {}, wire.pack(carry), None


def _place() -> "Record":
    """Return which process this is, and the CPU time that it has used, with all its threads."""
    return {"machine": platform.node(), "pid": os.getpid(), "cpu_s": time.process_time()}
