"""The evaluation of a stored policy, from parsed command line to exit code."""

import argparse
import sys
import traceback
from typing import Any

import rich.console
import rich.table

from sebulba.config import Config
from sebulba.devices.known_answers import check_compiler
from sebulba.envs.base import Environment
from sebulba.errors import ConfigError
from sebulba.evaluation.episodes import EvaluationPlan, PlayedEpisodes
from sebulba.evaluation.protocol import notable_settings
from sebulba.evaluation.recording import Recording
from sebulba.evaluation.rendering import check_rendering, load_opengl, with_rendering
from sebulba.evaluation.statistics import Statistics, summarize
from sebulba.evaluation.stored import load_stored_policy, parse_which
from sebulba.evaluation.video import check_format, write_video
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_SIGNAL_BASE,
)
from sebulba.ring.run_end import RunEnd
from sebulba.run.training import use_compilation_cache
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.files import write_json
from sebulba.tools.evaluate.function import play, protocol_of

_PIPE_WIDTH = 120


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate as the command line requests, and return the process's exit code.

    Results go to stdout and the requested files, errors to stderr, with the cause on the last line.
    """
    try:
        with RunEnd().listening() as run_end:
            played_any = _evaluate(options, run_end)
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(f"sebulba: CheckpointError: {error}", file=sys.stderr)
        return EXIT_CHECKPOINT
    except Exception as error:
        traceback.print_exc()
        print(f"sebulba: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAILED
    if run_end.signal is not None:
        print("sebulba: stopped by a signal; no results were written", file=sys.stderr)
        return EXIT_SIGNAL_BASE + run_end.signal
    if not played_any:
        print(
            "sebulba: no episode ended within the step budget; increase --max-episode-steps",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return EXIT_DONE


def _evaluate(options: argparse.Namespace, run_end: RunEnd) -> bool:
    """Play the episodes, print and write the results; return whether any episode ended."""
    which = parse_which(options.checkpoint)
    if options.video is not None:
        check_format(options.video)
        load_opengl()  # EnvPool looks for OpenGL only when it is imported.
    use_compilation_cache()
    check_compiler()
    stored = load_stored_policy(options.run_dir, which)
    if options.video is not None:
        check_rendering(stored.config.env)
    plan = _plan(options, stored.config)

    def wrap(environment: Environment) -> Environment:
        if options.video is None:
            return environment
        return Recording(environment, episodes=options.video_episodes)

    evaluation = play(stored, plan, wrap=wrap, is_interrupted=lambda: run_end.is_interrupted)
    if run_end.is_interrupted:
        return False
    played = evaluation.result()
    statistics = summarize(played.records, seed=plan.seed)
    protocol = protocol_of(stored, plan, evaluation)
    _show(statistics, protocol, played)
    if options.json is not None:
        write_json(options.json, _to_json(statistics, protocol, played))
    if isinstance(recording := evaluation.environment, Recording):
        count = write_video(options.video, recording.frames(), fps=options.fps)
        limit = " (recording stopped at the frame limit)" if recording.is_truncated else ""
        print(f"{options.video}: {count:,} frames{limit}")
    return bool(played.records)


def _plan(options: argparse.Namespace, config: Config) -> EvaluationPlan:
    settings = config.evaluation
    return EvaluationPlan(
        env=config.env if options.video is None else with_rendering(config.env),
        episodes=options.episodes,
        num_envs=options.parallel_envs or settings.parallel_envs,
        max_episode_steps=options.max_episode_steps or settings.max_episode_steps,
        greedy=settings.greedy if options.greedy is None else options.greedy,
        seed=config.seed if options.seed is None else options.seed,
    )


def _to_json(statistics: Statistics, protocol: Row, played: PlayedEpisodes) -> dict[str, Any]:
    return {
        "statistics": statistics,
        "episodes_unfinished": played.unfinished,
        "protocol": protocol,
        "episodes": [
            {"env": env, "return": record.episode_return, "length": record.episode_length}
            for env, records in enumerate(played.episodes)
            for record in records
        ],
    }


def _show(statistics: Statistics, protocol: Row, played: PlayedEpisodes) -> None:
    """Print the statistics, and below them the settings that they depend on."""
    table = rich.table.Table(show_header=False, title=f"{protocol['suite']} {protocol['id']}")
    for name, value in _statistics_rows(statistics, played).items():
        table.add_row(name, value)
    table.add_section()
    for name, value in _protocol_rows(protocol).items():
        table.add_row(name, str(value))
    # A pipe has no width, and rich would wrap at 80 columns.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    rich.console.Console(width=width, highlight=False, markup=False).print(table)


def _statistics_rows(statistics: Statistics, played: PlayedEpisodes) -> dict[str, str]:
    def number(key: str) -> str:
        value = statistics[key]
        return "unknown" if value is None else f"{value:,.2f}"

    rows = {
        "return: mean ± standard deviation": f"{number('return_mean')} ± {number('return_std')}",
        "interquartile mean [95 % bootstrap interval]": (
            f"{number('return_iqm')} [{number('return_iqm_low')}, {number('return_iqm_high')}]"
        ),
        "minimum, maximum": f"{number('return_min')}, {number('return_max')}",
        "mean length": f"{number('length_mean')} env steps",
        "episodes": f"{statistics['episodes']:,}",
    }
    if played.unfinished:
        rows["unfinished, excluded"] = (
            f"{played.unfinished:,}, so long episodes are missing; increase --max-episode-steps"
        )
    return rows


def _protocol_rows(protocol: Row) -> Row:
    return {
        "policy": "greedy" if protocol["greedy"] else "sampled",
        "trained for": f"{protocol['env_steps_trained']:,} env steps,"
        f" {protocol['updates_trained']:,} updates (learner cycle {protocol['learner_cycle']:,})",
        "environments": f"{protocol['num_envs']}, episodes per environment fixed in advance",
        "seed": protocol["seed"],
        **notable_settings(protocol["settings"]),
    }
