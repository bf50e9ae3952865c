"""Measuring another program beside ours."""

import ast
import dataclasses
import re
import sys

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import returns
from benchmarks.peers.pairs import PAIRS
from sebulba.config.loading import load_config


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_every_pair_says_how_to_repeat_it_and_has_its_files(pair):
    text = pair.describe()
    assert f"python -m benchmarks.peers {pair.name} --python" in text and "not equal:" in text
    for name in (pair.program, f"{pair.own}.py", pair.config):
        assert (peers._PROGRAMS / name).is_file()
    load_config(peers._PROGRAMS / pair.config, pair.own_flags)  # raises if a setting is unknown


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_the_pairs_on_our_version_of_jaxlib_have_our_xla_flags_in_a_row(pair):
    is_ours = any("jax==0.10.2" in command for command in pair.install)
    assert pair.xla_flags.startswith("--xla_cpu") == is_ours
    assert (pair.xla_flags in pair.describe()) and ("also with" in pair.describe()) == is_ours


@pytest.mark.parametrize("name", ["anakin", "mz"])
def test_the_learning_rate_of_stoix_does_not_fall_within_a_call(name):
    text = (peers._PROGRAMS / f"peer_stoix_{name}.py").read_text()
    (calls,) = re.findall(r'"arch.total_timesteps": NUM_ENVS \* LENGTH \* ([\d_]+)', text)
    assert int(calls) >= 100_000


FLAG = "--xla_flag_of_ours=1"
COUNTING = """
import itertools, os, pathlib, sys
with pathlib.Path(sys.argv[1]).open("a") as file:
    names = "XLA_FLAGS", "PYTHONPYCACHEPREFIX", "PYTHONPATH"
    print([os.environ.get(name) for name in names], file=file)
for i in itertools.count(): print("env steps:", 8 * i, flush=True)
"""


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """Return the pair of two counting programs, and the file of the variables they start with."""
    (tmp_path / "peer.py").write_text(COUNTING)
    file = tmp_path / "starts.txt"
    monkeypatch.setattr(peers, "_PROGRAMS", tmp_path)
    own = [sys.executable, "-c", COUNTING, str(tmp_path / "own.txt")]
    monkeypatch.setattr(peers, "_own_command", lambda pair: own)
    pair = peers.Pair(
        name="peer",
        task="counting",
        install=(),
        program="peer.py",
        flags=(str(file),),
        config="none.yaml",
        xla_flags=FLAG,
        equal="all",
        different="nothing",
        warm_up_s=0.0,
    )
    return pair, file


def variables_in(file):
    return [ast.literal_eval(line) for line in file.read_text().splitlines()]


def test_a_peer_on_our_jaxlib_has_a_row_with_our_xla_flags_too(starts):
    pair, file = starts
    result = peers.measure(pair, python=sys.executable, checkout="", seconds=0.0, repeats=1)
    assert list(result.rates) == ["ours", "peer", "peer with our XLA flags"]
    assert list(result.ratios) == ["ours / peer", "ours / peer with our XLA flags"]
    assert [flag for flag, _, _ in variables_in(file)].count(FLAG) == 2


def test_packages_of_our_environment_do_not_reach_a_peer(starts, monkeypatch):
    pair, file = starts
    monkeypatch.setenv("PYTHONPATH", "/packages/of/ours")
    peers.measure(pair, python=sys.executable, checkout="", seconds=0.0, repeats=1)
    peers.measure_start(pair, python=sys.executable, checkout="", repeats=1)
    assert {path for _, _, path in variables_in(file)} == {""}
    own = variables_in(file.with_name("own.txt"))
    assert {path for _, _, path in own} == {"/packages/of/ours"}


def test_all_starts_share_the_bytecode_that_an_untimed_one_has_written(starts):
    pair, file = starts
    result = peers.measure_start(pair, python=sys.executable, checkout="", repeats=1)
    assert all(len(series.values) == 1 for series in result.rates.values())
    directories = [directory for _, directory, _ in variables_in(file)]
    assert len(directories) == 3 and len(set(directories)) == 1 and directories[0] is not None


TRAINING = """
import sys
flags = dict(flag.split("=") for flag in sys.argv[2:])
for update in range(40):
    print("return:", "nan" if update == 39 else update * float(flags["SCALE"]))
    print("env steps:", 8 * update, flush=True)
"""


def test_a_peers_return_is_the_mean_of_its_last_updates_in_which_an_episode_ended(
    tmp_path, monkeypatch
):
    (tmp_path / "peer.py").write_text(TRAINING)
    monkeypatch.setattr(returns, "_PROGRAMS", tmp_path)
    pair = dataclasses.replace(
        PAIRS["jaxmarl_spread"], program="peer.py", flags=("SCALE=2", "SEED=0")
    )
    trained = returns.of_peer(pair, 3, 320, python=sys.executable, checkout="")
    assert trained["return"] == 2 * 38  # the last of 39


def test_runs_that_the_file_of_returns_has_are_not_repeated(tmp_path, monkeypatch, capsys):
    asked = []

    def train(who):
        def record(pair, seed, env_steps, **options):
            asked.append((who, seed))
            return {"return": float(seed), "process_s": 1.0}

        return record

    monkeypatch.setattr(returns, "of_ours", train("ours"))
    monkeypatch.setattr(returns, "of_peer", train("peer"))
    command = ["returns", "jaxmarl_spread", "--python", "python", "--checkout", "."]
    command += ["--env-steps", "1e3", "--into", str(tmp_path / "returns.jsonl")]
    for seeds in (["1"], ["1", "2"]):
        monkeypatch.setattr(sys, "argv", [*command, "--seeds", *seeds])
        returns.main()
    assert asked == [("ours", 1), ("peer", 1), ("ours", 2), ("peer", 2)]
    *_, ours, peer = capsys.readouterr().out.splitlines()
    assert ours.split() == ["ours", "1.50,", "by", "seed", "1:", "1.00,", "2:", "2.00"]
    assert peer.startswith("peer")
