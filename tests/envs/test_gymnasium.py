import multiprocessing
import pathlib
import queue
import signal
import subprocess
import time

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from sebulba.config import EnvConfig
from sebulba.envs import gymnasium_workers, make_environment
from sebulba.envs.base import EnvironmentDataError, EnvironmentFault
from sebulba.envs.gymnasium_workers import WorkerError
from sebulba.errors import ConfigError
from sebulba.process import kill_group
from tests.subprocesses import run_python


class Doubles(gymnasium.Env):
    """Has float64 observations and actions, and integers; terminates after two steps."""

    observation_space = Dict({"x": Box(-10.0, 10.0, (2,), np.float64), "t": Discrete(3)})
    action_space = Box(-0.1, 0.1, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._x, self._t = np.zeros(2), 0
        return self._observation(), {}

    def step(self, action):
        assert action.dtype == np.float64
        self._x, self._t = self._x + action, self._t + 1
        return self._observation(), float(self._x.sum()), self._t == 2, False, {}

    def _observation(self):
        return {"x": self._x, "t": self._t}


class LongIntegers(gymnasium.Env):
    """Has integers of 64 bits, from the second step on such that 32 do not hold."""

    observation_space = Box(-(2**62), 2**62, (2,), np.int64)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.array([5, -7]), {}

    def step(self, action):
        self._t += 1
        return np.array([5, 2**40 + 7 if self._t == 2 else -7]), 0.0, False, False, {}


class SameStep(gymnasium.vector.VectorEnv):
    """A vector environment with same-step autoreset."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
    closed_by_adapter = False

    def __init__(self, num_envs, **kwargs):
        self.num_envs = num_envs

    def close(self, **kwargs):
        type(self).closed_by_adapter = True


gymnasium.register("Doubles-v0", entry_point=Doubles)
gymnasium.register("LongIntegers-v0", entry_point=LongIntegers)
gymnasium.register("SameStep-v0", entry_point=Doubles, vector_entry_point=SameStep)


def test_integers_that_32_bits_do_not_hold_are_an_error():
    environment = make("LongIntegers-v0")
    assert environment.reset().observation.tolist() == [[5, -7]] * 2
    environment.step(np.zeros(2, np.int32))
    message = r"an observation of env 0 is 1099511627783; expected integers of int32"
    with pytest.raises(EnvironmentDataError, match=message):
        environment.step(np.zeros(2, np.int32))
    environment.close()


def make(name, *, num_envs=2, **options):
    config = EnvConfig(suite="gymnasium", id=name, options=options)
    return make_environment(config, num_envs=num_envs, seed=1)


def test_gymnasium_narrows_observations_and_widens_actions():
    environment = make("Doubles-v0")
    assert environment.spec.observation == {
        "x": jax.ShapeDtypeStruct((2,), np.float32),
        "t": jax.ShapeDtypeStruct((), np.int32),
    }
    assert environment.spec.action_space.dtype == np.float32
    environment.reset()
    # As float32, 0.1 is larger than the native bound; it still counts as inside.
    row = environment.step(environment.spec.action_space.high[None].repeat(2, 0))
    assert row.observation["x"].dtype == np.float32
    np.testing.assert_allclose(row.observation["x"], 0.1)
    np.testing.assert_array_equal(row.observation["t"], np.array([1, 1], np.int32))
    np.testing.assert_allclose(row.reward, np.array([0.2, 0.2], np.float32))
    environment.close()


def test_gymnasium_cannot_be_fused():
    environment = make("CartPole-v1")
    environment.reset()
    assert environment.fused() is None
    environment.close()


def test_gymnasium_imports_the_module_of_an_id():
    environment = make(f"{__name__}:Doubles-v0")
    assert environment.reset().observation["x"].shape == (2, 2)
    environment.close()


def test_gymnasium_supports_vector_entry_points():
    environment = make("CartPole-v1", vectorization_mode="vector_entry_point")
    first = environment.reset()
    kept = first.observation.copy()
    environment.step(np.ones(2, np.int32))
    np.testing.assert_array_equal(first.observation, kept)
    environment.close()


@pytest.mark.parametrize("mode", ["SameStep", "Disabled", "SAME_STEP"])
def test_gymnasium_refuses_other_autoreset_modes(mode):
    expected = rf"env\.options\.vector_kwargs\.autoreset_mode: expected NextStep, got {mode}"
    with pytest.raises(ConfigError, match=expected):
        make("CartPole-v1", vector_kwargs={"autoreset_mode": mode})


def test_gymnasium_closes_a_refused_environment_and_says_what_to_set():
    with pytest.raises(ConfigError, match="vectorization_mode to sync or async"):
        make("SameStep-v0", vectorization_mode="vector_entry_point")
    assert SameStep.closed_by_adapter
    make("SameStep-v0").close()


def test_gymnasium_async_stream_equals_sync():
    actions = np.random.default_rng(0).integers(2, size=(30, 2)).astype(np.int32)
    synchronous, asynchronous = (
        make("CartPole-v1", vectorization_mode=mode, max_episode_steps=12)
        for mode in ("sync", "async")
    )
    expected = [synchronous.reset(), *map(synchronous.step, actions)]
    got = [asynchronous.reset(), *map(asynchronous.step, actions)]
    # Compared only at the end: each row must have its own memory.
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    assert sum(row.truncated.sum() for row in got) >= 2
    with pytest.raises(ValueError, match="expected an action"):
        asynchronous.step(np.zeros(3, np.int32))
    synchronous.close()
    asynchronous.close()
    asynchronous.close()


class Engine(gymnasium.Env):
    """Starts a process that outlives it, as game engines do; observes its number."""

    observation_space = Box(0.0, 1e9, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._process = subprocess.Popen(["sleep", "3600"])
        return np.array([self._process.pid], np.float32), {}

    def step(self, action):
        return np.array([self._process.pid], np.float32), 0.0, False, False, {}


gymnasium.register("Engine-v0", entry_point=Engine, disable_env_checker=True)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("end", ["close", "kill"])
def test_gymnasium_workers_leave_no_process_behind(end):
    """A killed worker is what a run leaves that ends while its threads are stuck."""
    environment = make(f"{__name__}:Engine-v0", num_envs=1, vectorization_mode="async")
    pid = int(environment.reset().observation[0, 0])
    assert is_running(pid)
    if end == "close":
        environment.close()
    else:
        (worker,) = multiprocessing.active_children()
        kill_group(worker)
        with pytest.raises(EnvironmentFault, match="its worker process ended with code -9"):
            environment.step(np.zeros(1, np.int32))
    while is_running(pid):
        time.sleep(0.01)
    assert multiprocessing.active_children() == []


def test_a_worker_steps_on_after_sigterm_and_ends_with_its_process():
    """Slurm and systemd signal all processes of a run, which may need more steps to be saved."""
    script = (
        "import multiprocessing, numpy; from sebulba.config import EnvConfig\n"
        "from sebulba.envs import make_environment\n"
        "config = EnvConfig(suite='gymnasium', id='CartPole-v1',"
        " options={'vectorization_mode': 'async'})\n"
        "environment = make_environment(config, num_envs=1, seed=1)\n"
        "environment.reset()\n"
        "(worker,) = multiprocessing.active_children()\n"
        "worker.terminate()\n"
        "worker.join(1.0)\n"
        "environment.step(numpy.zeros(1, numpy.int32))\n"
        "print('stepped', worker.pid)\n"  # It is not closed.
    )
    process = run_python("-c", script)
    assert process.stderr == ""
    word, pid = process.stdout.split()
    assert word == "stepped" and not is_running(int(pid))


def test_gymnasium_steps_mujoco_and_clips_actions_to_its_bounds():
    for module in ("mujoco", "imageio"):  # both from the extra `mujoco`
        pytest.importorskip(module)
    rows = []
    for action in (1.0, 3.0):
        environment = make("HalfCheetah-v5")
        assert environment.spec.observation == jax.ShapeDtypeStruct((17,), np.float32)
        environment.reset()
        rows.append(environment.step(np.full((2, 6), action, np.float32)))
        environment.close()
    jax.tree.map(np.testing.assert_array_equal, *rows)
    assert np.isfinite(rows[0].observation).all() and (rows[0].reward != 0.0).all()


class Parts(gymnasium.Env):
    """Has the mask of a MultiDiscrete action next to a Dict of other observations."""

    observation_space = Dict({"x": Box(0.0, 1.0, (2,)), "action_mask": MultiBinary(5)})
    action_space = MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"x": np.zeros(2, np.float32), "action_mask": [0, 1, 0, 0, 0]}, {}

    def step(self, action):
        raise NotImplementedError


class NoMask(gymnasium.Env):
    """Reports no mask."""

    observation_space, action_space = Box(0.0, 1.0, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"other": 1}

    def step(self, action):
        raise NotImplementedError


class WithMethod(NoMask):
    """Reports masks by the method of other libraries."""

    def action_masks(self):
        return [True, False]


for _class in (Parts, NoMask, WithMethod):
    gymnasium.register(f"{_class.__name__}-v0", entry_point=_class, disable_env_checker=True)
FROM_INFO = ("sebulba.envs.gymnasium_wrappers:MaskFromInfo",)


def make_wrapped(name):
    config = EnvConfig(suite="gymnasium", id=name, wrappers=FROM_INFO)
    return make_environment(config, num_envs=2, seed=1)


def test_gymnasium_separates_the_mask_from_other_observations():
    environment = make("Parts-v0")
    assert environment.spec.observation == {"x": jax.ShapeDtypeStruct((2,), np.float32)}
    row = environment.reset()
    assert set(row.observation) == {"x"}
    # No action of the second choice is legal, so all of them are.
    np.testing.assert_array_equal(row.action_mask, np.array([[0, 1, 1, 1, 1]] * 2, bool))
    environment.close()


def test_gymnasium_takes_masks_from_a_method_and_refuses_their_absence():
    environment = make_wrapped("WithMethod-v0")
    np.testing.assert_array_equal(environment.reset().action_mask, np.array([[1, 0]] * 2, bool))
    environment.close()
    environment = make_wrapped("NoMask-v0")
    with pytest.raises(EnvironmentFault, match=r"expected info\['action_mask'\] or .*other"):
        environment.reset()
    environment.close()


def test_ctrl_c_does_not_reach_worker_processes_that_have_just_started(monkeypatch):
    """A terminal signals its process group, which a worker is about to leave."""
    began = []
    monkeypatch.setattr(gymnasium_workers.os, "setpgid", lambda pid, group: None)
    monkeypatch.setattr(gymnasium_workers, "_async_worker", lambda *args: began.append(args[1]()))
    previous = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with gymnasium_workers.starting_workers():  # inherited by a process started here
            signal.raise_signal(signal.SIGINT)
            gymnasium_workers.run_worker(0, gymnasium.Env, *[None] * 5)
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & previous.keys()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    assert [type(environment.unwrapped) for environment in began] == [gymnasium.Env]


LINE = "(test_gymnasium.py:{}: raise error)"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RuntimeError("no license left"), WorkerError, "RuntimeError: no license left"),
        (SystemExit(0), WorkerError, "SystemExit: 0"),
        (ConfigError("env.wrappers[0]: expected"), ConfigError, "env.wrappers[0]: expected"),
    ],
)
def test_a_worker_reports_an_error_of_its_environment_s_constructor(error, kind, text, monkeypatch):
    def fail():
        raise error

    if kind is WorkerError:
        text = f"{text} {LINE.format(fail.__code__.co_firstlineno + 1)}"

    monkeypatch.setattr(gymnasium_workers.os, "setpgid", lambda pid, group: None)
    errors = queue.SimpleQueue()
    own, of_worker = multiprocessing.Pipe()
    own.send(("_check_spaces", None))
    gymnasium_workers.run_worker(3, fail, of_worker, own, None, errors, None)
    assert own.recv() == (None, False)
    assert errors.get()[:3] == (3, kind, text)


def test_a_process_that_starts_workers_blocks_ctrl_c_and_is_silent_if_it_ends_at_once():
    script = (
        "import multiprocessing, os, signal; from sebulba.envs import gymnasium_workers\n"
        "with gymnasium_workers.starting_workers():\n"
        "    lock = multiprocessing.get_context('spawn').Lock()\n"
        "    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)\n"
        "os._exit(0)"
    )
    process = run_python("-c", script)
    assert process.stdout == "True\n"
    assert process.stderr == ""
