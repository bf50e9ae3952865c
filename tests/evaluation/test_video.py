"""Recorded videos: they open, and show the episodes that were played."""

import importlib.util
import re
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from sebulba.evaluation import rendering, video
from sebulba.evaluation.recording import Recording
from sebulba.evaluation.rendering import check_rendering, with_rendering
from sebulba.evaluation.video import check_format, write_video
from tests.envs.test_turns import Turns

Image = pytest.importorskip("PIL.Image")


def record(env, *, episodes, steps, num_envs=2):
    environment = make_environment(with_rendering(env), num_envs=num_envs, seed=0)
    recording = Recording(environment, episodes=episodes)
    recording.reset()
    lengths, length = [], 0
    for _ in range(steps):
        row = recording.step(np.zeros(num_envs, np.int32))
        length += not row.is_first[0]
        if row.done[0]:
            lengths.append(length)
            length = 0
    recording.close()
    return list(recording.frames()), lengths


@pytest.mark.parametrize(
    ("env", "shape"),
    [
        (EnvConfig(suite="jax", id="Catch-v0"), (10, 5, 3)),
        (EnvConfig(suite="jax", id="Recall-v0"), (3, 4, 3)),
        (EnvConfig(suite="envpool", id="CartPole-v1"), (400, 600, 3)),
    ],
)
@pytest.mark.parametrize("episodes", [1, 2])
def test_an_episode_of_n_steps_has_n_plus_one_frames(env, shape, episodes):
    frames, lengths = record(env, episodes=episodes, steps=40)
    assert len(lengths) > 2
    assert len(frames) == sum(lengths[:episodes]) + episodes
    assert {frame.shape for frame in frames} == {shape}
    assert {frame.dtype for frame in frames} == {np.dtype(np.uint8)}


@pytest.mark.skipif(importlib.util.find_spec("pygame") is None, reason="needs pygame")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasium_environments_are_recorded_in_this_process(mode):
    env = EnvConfig(suite="gymnasium", id="CartPole-v1", options={"vectorization_mode": mode})
    frames, lengths = record(env, episodes=1, steps=15)
    assert len(frames) == lengths[0] + 1
    assert frames[0].shape == (400, 600, 3)
    assert not np.array_equal(frames[0], frames[-1])


def test_catch_shows_ball_and_paddle_where_the_observation_has_them():
    environment = make_environment(EnvConfig(suite="jax", id="Catch-v0"), num_envs=1, seed=3)
    environment.reset()
    board = environment.step(np.array([0], np.int32)).observation[0].reshape(10, 5)
    np.testing.assert_array_equal(environment.render().any(axis=-1), board.astype(bool))


def test_recall_shows_the_cue_first_and_the_query_last():
    environment = make_environment(
        EnvConfig(suite="jax", id="Recall-v0", options={"delay": 2}), num_envs=1, seed=3
    )
    cue = environment.reset().observation[0].argmax()
    frames = [environment.render()]
    for _ in range(2):
        environment.step(np.array([0], np.int32))
        frames.append(environment.render())
    assert frames[0][0].any(axis=-1).nonzero()[0].tolist() == [cue]
    assert [bool(frame[0].any()) for frame in frames] == [True, False, False]
    assert [bool(frame[1].any()) for frame in frames] == [False, False, True]


def test_a_gif_has_every_frame(tmp_path):
    frames = [np.full((8, 6, 3), 20 * i, np.uint8) for i in range(7)]
    assert write_video(tmp_path / "x.gif", iter(frames), fps=20) == 7
    with Image.open(tmp_path / "x.gif") as image:
        assert image.n_frames == 7
        assert image.info["duration"] == 50
        assert image.size == (240, 320)  # enlarged 40 times


@pytest.mark.skipif(importlib.util.find_spec("imageio_ffmpeg") is None, reason="needs ffmpeg")
def test_an_mp4_has_every_frame(tmp_path):
    import imageio_ffmpeg

    frames = [np.full((161, 215, 3), 20 * i, np.uint8) for i in range(7)]
    assert write_video(tmp_path / "x.mp4", iter(frames), fps=20) == 7
    count = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", tmp_path / "x.mp4", "-f", "null", "-"]
    read = subprocess.run(count, capture_output=True, text=True, check=True, timeout=60)
    assert re.findall(r"frame= *(\d+)", read.stderr)[-1] == "7"


@pytest.mark.skipif(importlib.util.find_spec("imageio_ffmpeg") is None, reason="needs ffmpeg")
def test_an_mp4_that_cannot_be_written_is_an_os_error(tmp_path):
    frame = np.zeros((20, 20, 3), np.uint8)
    with pytest.raises(OSError, match="No such file or directory"):
        write_video(tmp_path / "missing" / "x.mp4", iter([frame]), fps=20)


def test_an_unsupported_format_is_refused():
    with pytest.raises(ConfigError, match=r"ends in \.gif or \.mp4"):
        check_format("x.avi")


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(video.FORMATS, ".gif", ("no_such_module", "pillow"))
    with pytest.raises(ConfigError, match=r"needs pillow: pip install 'sebulba\[video\]'"):
        check_format("x.gif")


@pytest.mark.slow
def test_a_rendering_failure_of_envpool_is_found_in_a_subprocess():
    with pytest.raises(ConfigError, match="EnvPool cannot render NoSuch-v0"):
        check_rendering(EnvConfig(suite="envpool", id="NoSuch-v0"))


@pytest.mark.slow
def test_missing_opengl_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setattr(rendering, "_OPENGL", "libMissing.so.1")
    with pytest.raises(ConfigError, match=r"OpenGL.*install libMissing\.so\.1 \(Debian: apt-get"):
        check_rendering(EnvConfig(suite="envpool", id="HalfCheetah-v4"))


@pytest.mark.parametrize("grayscale", [True, False])
def test_ale_renders_the_newest_frame_of_the_observation(grayscale):
    pytest.importorskip("ale_py", reason="needs the extra atari")
    options = {"img_height": 42, "img_width": 40, "stack_num": 2, "grayscale": grayscale}
    env = EnvConfig(suite="ale", id="pong", options=options)
    recording = Recording(make_environment(env, num_envs=2, seed=0), episodes=1)
    rows = [recording.reset(), *(recording.step(np.full(2, 3, np.int32)) for _ in range(20))]
    expected = np.stack([row.observation[0, -1] for row in rows])
    got = np.stack(list(recording.frames()))
    assert got.shape == (21, 42, 40, 3)
    np.testing.assert_array_equal(got, expected[..., None].repeat(3, -1) if grayscale else expected)
    assert (got[1:] != got[:-1]).any()


def test_a_task_without_render_is_refused():
    environment = make_environment(EnvConfig(suite="jax", id="Bandit-v0"), num_envs=1, seed=0)
    with pytest.raises(ConfigError, match="Bandit cannot be rendered"):
        Recording(environment, episodes=1).reset()


def test_an_adapter_without_render_is_refused():
    environment = make_environment(
        EnvConfig(suite="tests.evaluation.scripted:make", id="Scripted"), num_envs=1, seed=0
    )
    with pytest.raises(ConfigError, match="expected an adapter with `render"):
        Recording(environment, episodes=1)


def test_recording_does_not_change_the_stream():
    env = EnvConfig(suite="envpool", id="CartPole-v1")
    plain = make_environment(env, num_envs=2, seed=5)
    recorded = Recording(make_environment(with_rendering(env), num_envs=2, seed=5), episodes=1)
    for act in (lambda e: e.reset(), *[lambda e: e.step(np.array([0, 1], np.int32))] * 20):
        jax.tree.map(np.testing.assert_array_equal, act(plain), act(recorded))


class Shown(Turns):
    """Shows how many moves both players have made."""

    def render(self, state):
        return jnp.full((1, 1, 3), state[0], jnp.uint8)


def test_a_video_of_a_game_in_turns_shows_the_moves_of_both_players():
    env = EnvConfig(suite="jax", id=f"{__name__}:Shown", options={"moves": 3})
    starts = []
    for seed in (0, 1, 2, 3):
        recording = Recording(make_environment(env, num_envs=1, seed=seed), episodes=1)
        recording.reset()
        for _ in range(5):
            recording.step(np.zeros(1, np.int32))
        counts = [int(frame[0, 0, 0]) for frame in recording.frames()]
        starts.append(counts[0])  # 1 after a move of an opponent that begins
        assert counts == list(range(counts[0], 7))
    assert set(starts) == {0, 1}
