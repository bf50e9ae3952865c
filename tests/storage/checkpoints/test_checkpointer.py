"""Checkpoints: `restore` returns what was saved bit by bit, or raises an error."""

import pathlib
import pickle
import shutil
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.process import start_daemon
from sebulba.storage.checkpoints import checkpointer as checkpoint_writer
from sebulba.storage.checkpoints.checkpointer import Checkpointer, SaveError, snapshot
from sebulba.storage.checkpoints.manifest import flatten
from sebulba.storage.checkpoints.restore import CheckpointError, best_step, restore, steps_in

META = {"env_steps": 12, "returns": [0.1, float("nan"), 1e300], "name": "é"}


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def checkpointer(tmp_path):
    checkpointer = Checkpointer(tmp_path / "checkpoints", keep=2, start_thread=start_daemon)
    yield checkpointer
    checkpointer.wait()


def make_state(seed=0, width=4):
    rng = np.random.default_rng(seed)
    return {
        "networks": {"kernel": jnp.asarray(rng.normal(size=(3, width)).astype(np.float32))},
        "half": jnp.asarray(rng.normal(size=5), jnp.bfloat16),
        "step": jnp.int32(seed),
        "flags": jnp.array([True, False]),
        "nothing": jnp.zeros((0, 3)),
        "file": jnp.arange(4, dtype=jnp.uint8),
        "key": jax.random.key(seed),
        "keys": jax.random.split(jax.random.key(seed, impl="rbg"), 2),
        "host": rng.normal(size=3),  # float64, as NumPy environments give
    }


def save(checkpointer, step, state=None, *, score=None, meta=META):
    checkpointer.save(step, make_state(step) if state is None else state, meta, score=score)
    checkpointer.wait()
    checkpointer.check_for_errors()


def test_the_clocks_that_experience_once_held_are_ignored(checkpointer, tmp_path):
    names = ("step", "env_steps_low", "env_steps_high", "cycle_env_steps", "num_trajectories")
    experience = {"mass": jnp.ones(3)}
    stored = experience | {
        "clock": {name: jnp.int32([7]) for name in names},
        "inner": {"clock": {"step": jnp.int32([7])}},
    }
    save(checkpointer, 1, {"learner": {"experience": stored}})
    expected = {"learner": {"experience": experience}}
    got, _ = restore(tmp_path / "checkpoints", 1, expected)
    chex.assert_trees_all_equal(got, expected)
    # An agent's own clock is restored, and another leaf that nothing asks for is an error.
    got, _ = restore(tmp_path / "checkpoints", 1, {"learner": {"experience": stored}})
    chex.assert_trees_all_equal(got, {"learner": {"experience": stored}})
    with pytest.raises(CheckpointError, match=r"learner\.experience\.mass +float32\[3\] +absent"):
        restore(tmp_path / "checkpoints", 1, {"learner": {"experience": {}}})


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


def assert_same_meta(got, expected):
    assert repr(got) == repr(expected)  # NaN is not equal to itself


def test_restore_returns_every_bit_and_type(checkpointer):
    state = make_state(3)
    save(checkpointer, 3, state)
    restored, meta = restore(checkpointer.directory, "latest", state)
    chex.assert_trees_all_equal(restored, state)
    assert_same_meta(meta, META)
    for got, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert (type(got), got.dtype) == (type(expected), expected.dtype)


def test_restore_accepts_shapes_and_shardings_for_arrays(checkpointer):
    state = make_state()
    save(checkpointer, 0, state)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        {**state, "host": jnp.zeros(3)},
    )
    like["host"] = jax.ShapeDtypeStruct((3,), np.float64)
    restored, _ = restore(checkpointer.directory, 0, like)
    chex.assert_trees_all_equal(restored, state)
    assert isinstance(restored.pop("host"), np.ndarray)
    assert {leaf.sharding for leaf in jax.tree.leaves(restored)} == {sharding}


def test_restore_places_sharded_and_replicated_leaves_that_updates_may_donate(checkpointer):
    learner_devices = LearnerDevices(jax.devices()[:2])
    # Large: JAX may use the memory of large NumPy arrays without a copy.
    split = jax.device_put(
        jnp.arange(200_000.0).reshape(2, -1), learner_devices.sharding(PartitionSpec("learner"))
    )
    state = {"split": split, "replicated": learner_devices.replicate(jnp.arange(100_000.0))}
    save(checkpointer, 0, state)
    restored, _ = restore(checkpointer.directory, 0, state)
    assert isinstance(restored["split"].sharding, NamedSharding)
    assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, state)

    update = jax.jit(lambda x: jax.tree.map(lambda leaf: leaf * 2 + 1, x), donate_argnums=0)
    expected = jax.tree.map(lambda x: 2 * np.asarray(x) + 1, state)
    updated = update(restored)
    for shard in updated["replicated"].addressable_shards:
        np.testing.assert_array_equal(shard.data, expected["replicated"])
    np.testing.assert_array_equal(updated["split"], expected["split"])


def test_save_has_copied_everything_when_it_returns(checkpointer):
    state = {"donated": jnp.arange(100_000.0), "host": np.arange(5)}
    meta = {"counts": [1]}
    checkpointer.save(0, state, meta, score=None)
    jax.jit(lambda x: x + 1, donate_argnums=0)(state["donated"]).block_until_ready()
    state["host"][:] = -1
    meta["counts"].append(2)
    assert state["donated"].is_deleted()
    checkpointer.wait()
    like = {"donated": jnp.zeros(100_000), "host": np.arange(5)}
    restored, meta = restore(checkpointer.directory, 0, like)
    chex.assert_trees_all_equal(restored, {"donated": np.arange(100_000.0), "host": np.arange(5)})
    assert meta == {"counts": [1]}


def test_save_takes_an_earlier_snapshot(checkpointer):
    state = make_state()
    taken = snapshot(state)
    state["networks"]["kernel"].delete()
    save(checkpointer, 0, taken)
    restored, _ = restore(checkpointer.directory, 0, make_state(9))
    chex.assert_trees_all_equal(restored, make_state())


@pytest.mark.parametrize("is_on_cpu", [True, False])
def test_a_snapshot_copies_twice_only_what_is_a_view_of_the_devices_memory(is_on_cpu, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "_is_on_cpu", lambda array: is_on_cpu)
    array = jnp.arange(1000.0)
    (taken,) = snapshot({"kernel": array}).arrays.values()
    assert np.shares_memory(taken, np.asarray(array)) != is_on_cpu


def test_partial_restore_ignores_other_stored_leaves(checkpointer):
    save(checkpointer, 0)
    like = {"networks": make_state(5)["networks"]}
    restored, _ = restore(checkpointer.directory, "latest", like, partial=True)
    chex.assert_trees_all_equal(restored, {"networks": make_state(0)["networks"]})
    with pytest.raises(CheckpointError, match="other networks"):
        restore(checkpointer.directory, "latest", like)


def test_newest_and_best_are_kept(checkpointer):
    for step, score in enumerate([None, 3.0, float("nan"), 5.0, 1.0, None, 4.0]):
        save(checkpointer, step, score=score)
    assert steps_in(checkpointer.directory) == [3, 5, 6]
    assert best_step(checkpointer.directory) == 3
    for which, step in (("latest", 6), ("best", 3), (5, 5)):
        restored, _ = restore(checkpointer.directory, which, make_state())
        assert int(restored["step"]) == step


def test_of_equal_scores_the_last_is_the_best(checkpointer):
    for step, score in enumerate([5.0, 5.0, 1.0]):
        save(checkpointer, step, score=score)
    assert best_step(checkpointer.directory) == 1


def test_best_without_a_score_lists_the_steps(checkpointer):
    save(checkpointer, 4)
    with pytest.raises(CheckpointError, match="has a score, so none is the best: choose one of 4"):
        restore(checkpointer.directory, "best", make_state())


@pytest.mark.parametrize("which", ["latest", "best", 7])
def test_restore_without_a_checkpoint_is_an_error(tmp_path, which):
    with pytest.raises(CheckpointError, match="which has: none"):
        restore(tmp_path, which, make_state())


def test_saving_the_same_step_again_changes_nothing(checkpointer):
    save(checkpointer, 1)
    save(checkpointer, 1, make_state(2))
    restored, _ = restore(checkpointer.directory, 1, make_state())
    chex.assert_trees_all_equal(restored, make_state(1))


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({"networks": {"kernel": jnp.zeros((3, 8))}}, ["float32[3,4]", "float32[3,8]"]),
        ({"half": jnp.zeros(5)}, ["bfloat16[5]", "float32[5]"]),
        ({"key": jnp.zeros(2, jnp.uint32)}, ["key<fry>[]", "uint32[2]"]),
        ({"networks": {"bias": jnp.zeros(4)}}, ["networks.bias", "networks.kernel", "absent"]),
    ],
    ids=["width", "dtype", "key", "leaves"],
)
def test_restore_shows_how_another_agent_differs(checkpointer, change, rows):
    save(checkpointer, 12)
    with pytest.raises(CheckpointError) as caught:
        restore(checkpointer.directory, "latest", {**make_state(), **change})
    message = str(caught.value)
    for part in [f"checkpoint 12 in {checkpointer.directory}", "stored", "expected", *rows]:
        assert part in message


def take_arrays_from(checkpointer, state):
    """Replaces the arrays of step 1 by those of a checkpoint of another state."""
    other = Checkpointer(checkpointer.directory.parent / "other", keep=1)
    save(other, 1, state)
    name = "1/arrays.npz"
    shutil.copy(other.directory / name, checkpointer.directory / name)


def damage(file, how):
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        position = {"first bit": 0, "middle bit": len(content) // 2, "last bit": -1}[how]
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)


@pytest.mark.parametrize("how", ["missing", "truncated", "first bit", "middle bit", "last bit"])
def test_damage_to_any_file_is_found_or_harmless(checkpointer, tmp_path, how):
    save(checkpointer, 1)
    original, found = checkpointer.directory / "1", []
    files = [file.relative_to(original) for file in files_of(original)]
    for number, name in enumerate(files):
        directory = tmp_path / str(number)
        shutil.copytree(original, directory / "1")
        damage(directory / "1" / name, how)
        try:
            restored, meta = restore(directory, "latest", make_state())
        except CheckpointError as error:
            assert f"checkpoint 1 in {directory} is damaged" in str(error)
            found.append(name.name)
        else:
            chex.assert_trees_all_equal(restored, make_state(1))
            assert_same_meta(meta, META)
    # Nothing reads some bytes of an archive, such as the times of its members.
    assert found in (["arrays.npz", "manifest.json"], ["manifest.json"])


@pytest.mark.parametrize("leaf", ["networks.kernel", "half", "flags", "host"])
def test_flipped_bit_in_the_elements_of_a_leaf_is_found(checkpointer, leaf):
    state = {**make_state(1), "flags": jnp.arange(40) % 3 == 0}
    save(checkpointer, 1, state)
    file = checkpointer.directory / "1/arrays.npz"
    content = bytearray(file.read_bytes())
    content[content.index(np.asarray(flatten(state)[leaf]).tobytes())] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checkpoint 1 in .* is damaged"):
        restore(checkpointer.directory, "latest", state)


def test_changed_value_is_shown_as_a_checksum(checkpointer):
    save(checkpointer, 1)
    take_arrays_from(checkpointer, {**make_state(1), "step": jnp.int32(99)})
    with pytest.raises(CheckpointError, match="not what was saved") as caught:
        restore(checkpointer.directory, "latest", make_state())
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["leaf", "step"]


@pytest.mark.parametrize("host", [np.zeros((1, 3)), np.zeros(3, np.int64), np.zeros(4)], ids=str)
def test_array_of_another_type_is_found(checkpointer, host):
    save(checkpointer, 1)
    take_arrays_from(checkpointer, {**make_state(1), "host": host})
    with pytest.raises(CheckpointError, match=r"host +\S+\[\S+\] +float64\[3\] CRC32"):
        restore(checkpointer.directory, "latest", make_state())


def test_latest_never_falls_back_but_lists_the_other_steps(checkpointer):
    save(checkpointer, 1)
    save(checkpointer, 2)
    (checkpointer.directory / "2" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="newest that is whole is 1\\."):
        restore(checkpointer.directory, "latest", make_state())
    restored, _ = restore(checkpointer.directory, 1, make_state())
    chex.assert_trees_all_equal(restored, make_state(1))


def test_checkpoint_under_another_name_is_found(checkpointer):
    save(checkpointer, 1)
    (checkpointer.directory / "1").rename(checkpointer.directory / "5")
    with pytest.raises(CheckpointError, match="is of step 1"):
        restore(checkpointer.directory, "latest", make_state())


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return (open, (str(self._path), "w"))


def test_pickle_in_place_of_any_file_is_not_executed(checkpointer, tmp_path):
    save(checkpointer, 1)
    original, exploded, refused = checkpointer.directory / "1", tmp_path / "exploded", 0
    bomb = pickle.dumps(Bomb(exploded))
    files = [file.relative_to(original) for file in files_of(original)]
    for number, name in enumerate([*files, pathlib.Path("state.pkl")]):
        directory = tmp_path / str(number)
        shutil.copytree(original, directory / "1")
        (directory / "1" / name).write_bytes(bomb)
        try:
            restored, _ = restore(directory, "latest", make_state())
        except CheckpointError:
            refused += 1
        else:
            chex.assert_trees_all_equal(restored, make_state(1))
    assert refused == 2
    assert not exploded.exists()
    pickle.loads(bomb).close()
    assert exploded.exists()


def test_foreign_directory_is_no_checkpoint(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "state.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    (tmp_path / "notes").mkdir()
    (tmp_path / "4").write_text("a file")
    with pytest.raises(CheckpointError, match=r"checkpoint 3 in .* is damaged"):
        restore(tmp_path, "latest", make_state())
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("which", ["latest", "best", 3])
def test_checkpoint_of_an_earlier_version_is_refused_with_the_reason(tmp_path, which):
    (tmp_path / "3" / "manifest").mkdir(parents=True)
    (tmp_path / "3" / "manifest" / "metadata").write_text("{}")
    with pytest.raises(CheckpointError, match=r"checkpoint 3 .* by an earlier version of Sebulba"):
        restore(tmp_path, which, make_state())


def test_arrays_can_be_read_with_numpy_alone(checkpointer):
    state = make_state(1)
    save(checkpointer, 1, state)
    with np.load(checkpointer.directory / "1/arrays.npz") as arrays:
        np.testing.assert_array_equal(arrays["networks.kernel"], state["networks"]["kernel"])
        assert set(arrays) == {"networks.kernel", *state} - {"networks"}


def test_pixels_are_compressed(checkpointer):
    save(checkpointer, 1, {"pixels": jnp.zeros(100_000, jnp.uint8)})
    assert (checkpointer.directory / "1/arrays.npz").stat().st_size < 10_000


def test_save_returns_before_the_checkpoint_is_written(tmp_path):
    may_write = threading.Event()

    def start(write, name):
        return start_daemon(lambda: may_write.wait() and write(), name)

    checkpointer = Checkpointer(tmp_path, keep=1, start_thread=start)
    checkpointer.save(1, make_state(), META, score=None)
    assert checkpointer.is_saving()
    checkpointer.check_for_errors()
    assert steps_in(tmp_path) == []
    may_write.set()
    checkpointer.wait()
    assert not checkpointer.is_saving()
    assert steps_in(tmp_path) == [1]


def test_thread_that_cannot_be_started_is_a_failed_save(tmp_path):
    def refuse(write, name):
        raise RuntimeError("can't start new thread")

    checkpointer = Checkpointer(tmp_path, keep=1, start_thread=refuse)
    checkpointer.save(1, make_state(), META, score=None)
    with pytest.raises(SaveError, match=r"step 1 was not saved in .*: can't start new thread"):
        checkpointer.check_for_errors()


def test_new_checkpointer_removes_what_killed_saves_left(tmp_path):
    for name in ("5.tmp", "4.tmp-removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "arrays.npz").write_bytes(b"partial")
    Checkpointer(tmp_path, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_save_that_cannot_start_is_reported_and_the_next_one_is_tried(checkpointer, tmp_path):
    save(checkpointer, 1)
    aside = tmp_path / "aside"
    checkpointer.directory.rename(aside)
    checkpointer.directory.write_text("in the way")
    checkpointer.save(2, make_state(2), META, score=None)
    checkpointer.wait()
    with pytest.raises(SaveError, match=r"step 2 was not saved in .*checkpoints"):
        checkpointer.check_for_errors()
    checkpointer.check_for_errors()
    checkpointer.directory.unlink()
    aside.rename(checkpointer.directory)
    save(checkpointer, 3)
    assert steps_in(checkpointer.directory) == [1, 3]
