"""`sebulba.train`: results, errors and callbacks, without anything left behind in the process."""

import concurrent.futures
import copy
import dataclasses
import logging
import os
import signal
import subprocess
import threading

import gymnasium
import numpy as np
import pytest

import sebulba
from sebulba.agent_check import AgentError, validate_learning
from sebulba.config import ActorConfig, EvaluationConfig, RunConfig
from sebulba.config.objects import with_agent, with_environment
from sebulba.envs import make_environment
from sebulba.envs.jax_tasks import Catch
from sebulba.run import preparation, training
from sebulba.run.result import TrainingError
from sebulba_agents.config import ImpalaConfig
from tests.run.runs import make_config
from tests.subprocesses import started
from tests.toys import ToyAgent, ToyConfig, toy_run_spec


class FailingAgent(ToyAgent):
    """Fails when its loss is traced, in the learner's thread."""

    def loss(self, networks, experience, key, clock):
        if threading.current_thread() is not threading.main_thread():
            raise ArithmeticError("no such loss")
        return super().loss(networks, experience, key, clock)


class Halves(gymnasium.Env):
    """Rewards 1 for the action that the observation names; episodes of one step."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._side = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._side], {}

    def step(self, action):
        reward = float(action == self._side)
        return np.eye(2, dtype=np.float32)[self._side], reward, True, False, {}


@pytest.mark.usefixtures("no_thread_is_left")
def test_two_runs_of_a_process_return_results_and_leave_nothing_behind(tmp_path, capfd):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    variables = copy.copy(os.environ)
    results = [sebulba.train(make_config(tmp_path / name)) for name in ("first", "second")]
    for name, result in zip(("first", "second"), results, strict=True):
        assert result.status == "done"
        assert result.run_dir == tmp_path / name
        assert result.env_steps == result.rows[-1]["env_steps"] >= 3000
        assert len(result.rows) == 3
        assert result.updates == result.rows[-1]["updates"] > 0
        assert result.summary["networks_crc32"] and result.networks is not None
        assert result.evaluations == []
        action, _ = result.policy(np.zeros(50, np.float32))
        assert 0 <= int(action) < 3
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert os.environ == variables
    assert capfd.readouterr() == ("", ""), "a library call is quiet"


def test_agent_and_environment_may_be_objects_and_callbacks_may_end_the_run(tmp_path):
    events = []

    def stop_early(event, row):
        events.append((event, row["env_steps"]))
        return event == "metrics" and row["env_steps"] >= 500

    built = []

    def build(settings, run_spec):
        built.append(run_spec)
        return ToyAgent(ToyConfig(), run_spec)

    run = RunConfig(total_env_steps=10_000_000, log_interval_env_steps=500)
    evaluation = EvaluationConfig(interval_env_steps=10_000_000, episodes=2, parallel_envs=2)
    config = make_config(tmp_path / "run", run=run, evaluation=evaluation, agent=ImpalaConfig())
    result = sebulba.train(config, agent=build, environment=Catch, callbacks=stop_early)
    assert result.status == "done"
    assert 500 <= result.env_steps < 10_000_000
    assert [each for each in events if each[0] == "evaluation"] == [
        ("evaluation", result.env_steps)
    ]
    assert result.evaluations[0]["episodes"] == 2
    assert built[0].environment.action_space.n == 3
    # The objects come with the policy, and a loaded one has to be given what has no name.
    assert len(sebulba.evaluate(result.policy, episodes=3, parallel_envs=1).returns) == 3
    for numbers in ({"episodes": 0}, {"parallel_envs": 0}, {"max_episode_steps": -1}):
        with pytest.raises(
            sebulba.ConfigError, match=rf"{next(iter(numbers))}: expected an integer"
        ):
            sebulba.evaluate(result.policy, **numbers)
    with pytest.raises(sebulba.ConfigError, match=r"build is a lambda or a local .* agent=\.\.\."):
        sebulba.load_policy(tmp_path / "run")
    policy = sebulba.load_policy(tmp_path / "run", agent=build)
    observation = np.ones(50, np.float32)
    assert policy(observation)[0] == result.policy(observation)[0]


def test_an_environment_without_a_name_has_to_be_given_again():
    config = with_environment(make_config("run"), lambda: Halves())
    with pytest.raises(sebulba.ConfigError, match=r"env\.id: .*<lambda> is .* environment=\.\.\."):
        make_environment(load_config_of(config).env, num_envs=1, seed=0)


def test_a_checkpoint_may_be_named_and_other_objects_are_refused(run_of):
    at = f"{run_of('impala')}@latest"
    assert sebulba.evaluate(at, episodes=2).returns == sebulba.evaluate(at[:-7], episodes=2).returns
    assert sebulba.load_policy(at).stored.learner_cycle > 0
    with pytest.raises(sebulba.ConfigError, match=r"expected a run directory or .*, got Config"):
        sebulba.evaluate(make_config("run"))
    with pytest.raises(sebulba.ConfigError, match=r"got dict; of settings alone, .*load_config"):
        sebulba.train({"env.id": "CartPole-v1"})


def test_what_a_script_has_defined_has_to_be_given_again(tmp_path, capsys):
    environment = type("Own", (Halves,), {"__module__": "__main__"})
    config = make_config(tmp_path / "run", run=RunConfig(total_env_steps=200))
    result = sebulba.train(config, agent=ToyAgent, environment=environment, verbose=True)
    lines = capsys.readouterr().err
    assert "no command can import __main__:Own; to evaluate or continue" in lines
    assert "sebulba.evaluate" not in lines
    with pytest.raises(sebulba.ConfigError, match=r"env\.id: __main__:Own is of the script that"):
        sebulba.load_policy(result.run_dir)
    policy = sebulba.load_policy(result.run_dir, environment=environment)
    assert policy(np.zeros(2, np.float32))[0] in (0, 1)


def load_config_of(config):
    """Return a config as it is read from its file."""
    return dataclasses.replace(config, env=dataclasses.replace(config.env, id=str(config.env.id)))


class OwnSettings(ToyAgent):
    """An agent with settings of its own."""


class NoSettings:
    """An agent without settings."""


def test_settings_of_another_agent_are_not_lost_without_a_word():
    config = make_config("run", agent=ImpalaConfig(learning_rate=0.5, entropy_cost=0.0))
    unused = r"which has settings of impala: entropy_cost, learning_rate\. To give it settings, use"
    with pytest.warns(
        UserWarning, match=rf"ToyAgent gets the defaults of ToyConfig.*{unused} data"
    ):
        assert with_agent(config, ToyAgent).agent == ToyConfig(name="tests.toys:ToyAgent")
    with pytest.warns(UserWarning, match=r"gets no settings, .* ImpalaConfig as its attribute"):
        with_agent(config, NoSettings)
    # Nothing is lost: no warning, which would be an error here.
    with_agent(make_config("run", agent=ImpalaConfig()), ToyAgent)
    own = make_config("run", agent=ToyConfig(learning_rate=0.5))
    assert with_agent(own, OwnSettings).agent.learning_rate == 0.5


def test_a_gymnasium_class_is_an_environment_and_a_thread_may_train(tmp_path):
    config = make_config(tmp_path / "run", run=RunConfig(total_env_steps=200))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        result = pool.submit(sebulba.train, config, agent=ToyAgent, environment=Halves).result()
    assert result.status == "done"
    # Both have names that can be imported, so the run directory is enough.
    assert sebulba.load_policy(tmp_path / "run")(np.zeros(2, np.float32))[0] in (0, 1)


def test_a_failure_raises_with_the_code_of_the_command_line(tmp_path):
    with pytest.raises(TrainingError, match=r"ArithmeticError: no such loss.*learner") as caught:
        sebulba.train(make_config(tmp_path / "run"), agent=FailingAgent)
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert caught.value.result.status == "failed"
    with pytest.raises(sebulba.ConfigError, match="expected a new or empty"):
        sebulba.train(make_config(tmp_path))
    with pytest.raises(sebulba.ConfigError, match=r"actor.num_envs: expected int ≥ 1, got 0"):
        sebulba.train(make_config(tmp_path / "other", actor=ActorConfig(num_envs=0)))


@pytest.mark.parametrize("callbacks", [3, [3], {print}])
def test_what_is_no_callback_is_refused_at_the_start(callbacks, tmp_path):
    with pytest.raises(sebulba.ConfigError, match=r"callbacks: expected a function \(event, row\)"):
        sebulba.train(make_config(tmp_path / "run"), callbacks=callbacks)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_a_callback_raises_comes_out_as_it_is(tmp_path):
    class Pruned(Exception):
        pass

    def prune(event, row):
        raise Pruned(row["env_steps"])

    with pytest.raises(Pruned):
        sebulba.train(make_config(tmp_path / "run"), callbacks=[prune])


@pytest.mark.slow
def test_lines_of_text_go_to_the_log_or_to_stderr(tmp_path, caplog, capsys):
    with caplog.at_level(logging.INFO, "sebulba"):
        sebulba.train(make_config(tmp_path / "quiet"))
    assert any(line.startswith("run directory: ") for line in caplog.messages)
    assert any(line.startswith("done: ") for line in caplog.messages)
    sebulba.train(make_config(tmp_path / "shown"), verbose=True)
    assert "done: " in capsys.readouterr().err


def test_a_method_that_is_missing_is_named_with_its_signature(tmp_path):
    class Unfinished:
        def __init__(self, config, run_spec):
            self.made = ToyAgent(ToyConfig(), run_spec)

        def __getattr__(self, name):
            if name == "optimize":
                raise AttributeError(name)
            return getattr(self.made, name)

    signature = (
        r"def optimize\(self, networks, opt_state, grads, experience, clock\)`: Return the networks"
    )
    with pytest.raises(TrainingError, match=f"Unfinished has no method optimize; .*{signature}"):
        sebulba.train(make_config(tmp_path / "run"), agent=Unfinished)


class LongLoss(ToyAgent):
    """Forgets to reduce the loss."""

    def loss(self, networks, experience, key, clock):
        loss, aux = super().loss(networks, experience, key, clock)
        return loss[None] * np.ones(3, np.float32), aux


class NoPair(ToyAgent):
    def loss(self, networks, experience, key, clock):
        return super().loss(networks, experience, key, clock)[0]


class OtherOptState(ToyAgent):
    def optimize(self, networks, opt_state, grads, experience, clock):
        return networks, {"count": networks}


class CountsInNetworks(ToyAgent):
    def init_networks(self, key):
        return super().init_networks(key) | {"count": np.int32(0)}


class CountsWithoutUpdates(CountsInNetworks):
    def optimize(self, networks, opt_state, grads, experience, clock):
        return networks, opt_state

    def num_updates_per_cycle(self, cycle):
        return 0


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (LongLoss, r"loss: the loss: expected a scalar, got float32\[3\]"),
        (NoPair, r"loss: expected \(loss, \(experience, metrics\)\), got"),
        (
            CountsInNetworks,
            r"networks\.count: expected real or complex numbers, since gradients are taken, got"
            r" int32; keep counters in the optimizer state",
        ),
        (OtherOptState, r"optimize: optimizer state: count\S*: expected no such leaf, got float32"),
    ],
)
def test_what_an_agent_of_ones_own_returns_is_checked_before_anything_runs(agent, message):
    run_spec = toy_run_spec()
    with pytest.raises(AgentError, match=message):
        validate_learning(agent(ToyConfig(), run_spec), run_spec)
    for sound in (ToyAgent, CountsWithoutUpdates):
        validate_learning(sound(ToyConfig(), run_spec), run_spec)


_SCRIPT = """
import sys, sebulba
if __name__ == "__main__":
    run = {"total_env_steps": 10**9, "stop_at_return": None, "log_interval_env_steps": 1000}
    one = {"actor": [0], "learner": [0]}
    overrides = {"run_dir": sys.argv[1], "run": run, "devices": one}
    config = sebulba.load_config("impala_catch", overrides)
    try:
        sebulba.train(config, callbacks=lambda event, row: print("row", flush=True))
    except sebulba.TrainingInterrupted as error:
        print(error.exit_code, error.result.status, error.result.env_steps > 0)
        raise
"""


@pytest.mark.slow
def test_ctrl_c_in_a_script_saves_and_is_a_keyboard_interrupt(tmp_path):
    (tmp_path / "script.py").write_text(_SCRIPT)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(tmp_path / "script.py", tmp_path / "run", **pipes) as process:
        assert process.stdout.readline() == "row\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    assert stdout.splitlines()[-1] == "130 interrupted True"
    assert "TrainingInterrupted: stopped by SIGINT" in stderr and "to resume from it" in stderr
    assert any((tmp_path / "run" / "checkpoints").iterdir())


def test_ctrl_c_before_the_first_act_cycle_is_a_keyboard_interrupt_without_a_result(
    tmp_path, monkeypatch, capsys
):
    def make_ring(config, *, end, **options):
        os.kill(os.getpid(), signal.SIGINT)  # while a remote actor is waited for
        end.raise_if_received()

    monkeypatch.setattr(preparation, "make_ring", make_ring)
    config = make_config(tmp_path / "run")
    with pytest.raises(sebulba.TrainingInterrupted, match="by SIGINT before the first") as stopped:
        sebulba.train(config)
    assert stopped.value.exit_code == 130 and stopped.value.result is None
    assert training.train_to_exit_code(config) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "sebulba: stopped by SIGINT before the first act cycle. Nothing was learned yet."
    )
