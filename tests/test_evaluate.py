"""`python -m sebulba.evaluate`: statistics, files and exit codes."""

import json
import subprocess
import sys

import pytest

import sebulba
from sebulba.config import ActorConfig
from sebulba.envs import make_environment
from sebulba.envs.closing import CloseProblem
from sebulba.evaluation import episodes
from sebulba.evaluation.protocol import notable_settings
from sebulba.evaluation.rendering import load_opengl

Image = pytest.importorskip("PIL.Image")


def run_command(*arguments):
    """Evaluates as the command line does; returns the exit code."""
    # An import of the module would bind the name of the function to it.
    command = sys.modules[sebulba.evaluate.__module__]
    options = command._parser().parse_args([str(each) for each in arguments])
    return command.evaluate_to_exit_code(options)


@pytest.mark.parametrize("name", ["impala", "r2d2", pytest.param("sac", marks=pytest.mark.slow)])
def test_evaluation_needs_only_the_run_directory(run_of, tmp_path, capsys, name):
    file = tmp_path / "figures.json"
    assert run_command(run_of(name), "--episodes", 5, "--parallel-envs", 2, "--json", file) == 0
    shown = capsys.readouterr().out
    assert "interquartile mean" in shown
    assert "greedy" in shown
    figures = json.loads(file.read_text())
    assert figures["statistics"]["episodes"] == len(figures["episodes"]) == 5
    assert [each["env"] for each in figures["episodes"]] == [0, 0, 0, 1, 1]
    protocol = figures["protocol"]
    assert protocol["greedy"] is True
    assert protocol["env_steps_trained"] >= 200
    assert (protocol["seed"], protocol["num_envs"]) == (0, 2)


@pytest.mark.parametrize("flag", ["--json", "--video"])
def test_a_file_that_cannot_be_written_ends_the_command_before_it_plays(flag, tmp_path, capsys):
    for file in (tmp_path / "none" / "x.gif", tmp_path):
        assert run_command(tmp_path / "no run", flag, file) == 2
        expected = f"{flag}: expected a file in a directory that is writable, got {file}\n"
        assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        ("--episodes", "x", "an integer of at least 1"),
        ("--fps", "0", "an integer of at least 1"),
        ("--seed", "-1", "an integer in [0, 2**31)"),
    ],
)
def test_a_number_that_is_none_is_told_in_words(flag, text, expected, capsys):
    with pytest.raises(SystemExit):
        run_command("run", f"{flag}={text}")
    assert f"argument {flag}: expected {expected}, got {text}\n" in capsys.readouterr().err


def test_an_evaluation_does_not_wait_for_environments_that_do_not_close(
    run_of, monkeypatch, capsys
):
    hanging = CloseProblem(whose="the evaluation", text="still running", is_running=True)
    monkeypatch.setattr(episodes.Evaluation, "close", lambda self: [hanging])
    command, ends = sys.modules[sebulba.evaluate.__module__], []
    monkeypatch.setattr(command, "end_process", ends.append)
    assert run_command(run_of("impala"), "--episodes", 1) == 0
    assert "warning: close of the environments of the evaluation" in capsys.readouterr().err
    assert ends == [0]


def test_settings_that_papers_differ_in_have_readable_labels():
    settings = {"repeat_action_probability": 0.25, "frame_skip": 4, "max_episode_steps": 100}
    assert notable_settings(settings | {"img_height": 84, "noop_max": None}) == {
        "sticky actions": 0.25,
        "frames per step": 4,
        "max steps per episode": 100,
        "max frames per episode": 400,
    }


def test_two_evaluations_write_the_same_file(run_of, tmp_path):
    files = [tmp_path / f"{i}.json" for i in range(2)]
    for file in files:
        assert run_command(run_of("cartpole"), "--episodes", 4, "--seed", 7, "--json", file) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    settings = json.loads(files[0].read_text())["protocol"]["settings"]
    assert settings["max_episode_steps"] == 500


@pytest.mark.slow
def test_a_video_shows_the_first_episode_that_was_evaluated(run_of, tmp_path, capsys):
    video, file = tmp_path / "video.gif", tmp_path / "figures.json"
    arguments = ("--episodes", 4, "--video", video, "--json", file)
    assert run_command(run_of("impala"), *arguments) == 0
    first = json.loads(file.read_text())["episodes"][0]
    with Image.open(video) as image:
        assert image.n_frames == first["length"] + 1 == 10
    assert "10 frames" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not load_opengl(), reason="needs libEGL.so.1")
def test_a_video_of_envpool_s_mujoco_shows_every_step_of_the_episode(run_of, tmp_path):
    video = tmp_path / "video.gif"
    # In a subprocess: EnvPool looks for OpenGL when it is imported, which has happened here.
    command = [sys.executable, "-m", "sebulba.evaluate", str(run_of("half_cheetah"))]
    subprocess.run([*command, "--episodes", "2", "--video", str(video)], check=True, timeout=120)
    with Image.open(video) as image:
        assert image.size == (480, 480)
        assert image.n_frames == 21, "GIFs merge equal frames, so all of these differ"


def test_unfinished_episodes_are_reported(run_of, capsys):
    # Catch takes 9 steps and a slice has 16 rows, so only the first of two episodes ends.
    arguments = ("--episodes", 2, "--parallel-envs", 1, "--max-episode-steps", 2)
    assert run_command(run_of("impala"), *arguments) == 0
    assert "increase --max-episode-steps" in capsys.readouterr().out


def test_an_evaluation_in_which_no_episode_ends_fails(run_of, capsys):
    arguments = ("--episodes", 1, "--max-episode-steps", 1)
    assert run_command(run_of("never_ending"), *arguments) == 3
    captured = capsys.readouterr()
    assert "unknown" in captured.out
    assert "no episode ended" in captured.err


def test_environments_have_the_timeout_of_the_run(run_of, monkeypatch):
    made = []

    def make(*args, **kwargs):
        made.append(make_environment(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(episodes, "make_environment", make)
    run_command(run_of("never_ending"), "--episodes", 1, "--max-episode-steps", 1)
    assert [each.timeout_s for each in made] == [ActorConfig().env_timeout_s]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--checkpoint", "12345"], 4, "expected checkpoint 12345"),
        (["--checkpoint", "newest"], 2, "got 'newest'"),
        (["--video", "video.avi"], 2, "ends in .gif or .mp4"),
    ],
)
def test_invalid_arguments_have_their_exit_code(run_of, capsys, arguments, code, message):
    assert run_command(run_of("impala"), *arguments) == code
    assert message in capsys.readouterr().err


def test_a_directory_without_a_run_is_a_usage_error(tmp_path, capsys):
    assert run_command(tmp_path) == 2
    assert "expected a run directory" in capsys.readouterr().err


def test_usage_errors_are_reported_without_importing_jax():
    command = [sys.executable, "-X", "importtime", "-m", "sebulba.evaluate", "x", "--episodes", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "expected an integer of at least 1, got 0" in result.stderr
    assert " jax\n" not in result.stderr
