"""Evaluate a policy: the command `python -m sebulba.evaluate RUN_DIR`, and `sebulba.evaluate`.

Imports no jax before it evaluates, so that `--help` and errors of the command line come at once.
"""

import argparse
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sebulba.errors import ConfigError, describe_error, escaped, refuse
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_SIGNAL_BASE,
    end_process,
    program,
    run_command,
)
from sebulba.processes.command_line import ENV_FLAG, check_writable, take_env_flags, to_count

if TYPE_CHECKING:
    from rich.table import Table

    from sebulba.envs.closing import CloseProblem
    from sebulba.evaluation.policy import Policy
    from sebulba.evaluation.statistics import Statistics
    from sebulba.evaluation.stored import StoredPolicy
    from sebulba.ring.run_end import RunEnd

_PIPE_WIDTH = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The episodes of an evaluation and their statistics."""

    statistics: "Statistics"  # `return_mean`, `return_iqm`, `length_mean` and others, by name
    returns: tuple[float, ...]  # of the episodes, in the order of the environments
    lengths: tuple[int, ...]  # in env steps
    unfinished: int  # episodes that did not end within the step budget
    protocol: dict[str, Any]  # every setting that the results depend on

    @property
    def return_mean(self) -> float | int | None:
        """The mean return; None: no episode ended."""
        return self.statistics["return_mean"]

    def __repr__(self) -> str:
        """Return the most important statistics, without the episodes and their protocol."""
        words = []
        for name in ("return_mean", "return_std", "return_iqm", "length_mean"):
            value = self.statistics[name]
            words.append(f"{name}={value if value is None else format(value, '.5g')}")
        counts = f"episodes={len(self.returns)}, unfinished={self.unfinished}"
        return f"EvaluationResult({', '.join(words)}, {counts})"


def evaluate(
    policy: "Policy | str | os.PathLike[str]",
    *,
    episodes: int = 100,
    seed: int | None = None,
    greedy: bool | None = None,
    parallel_envs: int | None = None,
    max_episode_steps: int | None = None,
    env_options: Mapping[str, Any] | None = None,
) -> EvaluationResult:
    """Play episodes with a trained policy in new environments, and return their statistics.

    Equal arguments give equal results, and those of `python -m sebulba.evaluate`.

    Args:
        policy: the `policy` of a `Result`, one from `sebulba.load_policy`, or `RUN_DIR` or
            `RUN_DIR@CHECKPOINT` with `best`, `latest` or a learner cycle; the default is `latest`.
        episodes: number of episodes, divided evenly over the environments.
        seed: of environments and sampled actions; None: the run's.
        greedy: whether to take the mode of the policy. False: sample, and explore as in training at
            the checkpoint's env steps. None: as `evaluation.greedy` of the run says; that of a
            loaded policy is not used.
        parallel_envs: environments stepped together; None: `evaluation.parallel_envs`.
        max_episode_steps: step budget per episode; None: `evaluation.max_episode_steps`.
        env_options: arguments of the environment that replace those of the run, by name.

    Raises:
        ConfigError: not a run directory, or its environment or agent cannot be created.
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    from sebulba.devices.compilation_cache import use_compilation_cache
    from sebulba.evaluation.playing import play
    from sebulba.evaluation.policy import Policy
    from sebulba.evaluation.statistics import summarize
    from sebulba.evaluation.stored import load_stored_policy, parse_source, with_env_options

    use_compilation_cache()
    if isinstance(policy, Policy):
        stored = with_env_options(policy.stored, env_options or {})
    else:
        stored = load_stored_policy(*parse_source(policy), env=env_options)
    evaluation, protocol = play(
        stored,
        episodes=episodes,
        seed=seed,
        greedy=greedy,
        parallel_envs=parallel_envs,
        max_episode_steps=max_episode_steps,
    )
    played = evaluation.result()
    return EvaluationResult(
        statistics=summarize(played.records, seed=protocol["seed"]),
        returns=tuple(record.episode_return for record in played.records),
        lengths=tuple(record.episode_length for record in played.records),
        unfinished=played.unfinished,
        protocol=protocol,
    )


def main() -> None:
    """Parse the command line, evaluate, and exit with one of the codes that training uses."""
    sys.exit(evaluate_to_exit_code(parse(sys.argv[1:])))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return what a command line requests; ends the process if it is wrong."""
    parser = _parser()
    try:
        env, rest = take_env_flags(argv)
    except ConfigError as error:
        parser.error(str(error))
    options = parser.parse_args(rest, argparse.Namespace(env=env))
    if (options.opponents or options.checkpoint == "all") and options.video is not None:
        parser.error("--video: expected one run and checkpoint, whose episodes are recorded")
    return options


def evaluate_to_exit_code(options: argparse.Namespace) -> int:
    """Evaluate as the command line requests, and return the process's exit code.

    Results go to stdout and the requested files, errors to stderr, with the cause on the last line.
    """
    from sebulba.ring.run_end import RunEnd

    run_end = RunEnd()
    code = _exit_code(options, run_end)
    if run_end.is_closing:
        end_process(code)
    return code


def _exit_code(options: argparse.Namespace, run_end: "RunEnd") -> int:
    from sebulba.envs.base import EnvironmentFault
    from sebulba.storage.checkpoints.restore import CheckpointError

    try:
        with run_end.listening():
            played_any = _evaluate(options, run_end)
    except ConfigError as error:
        return refuse(error)
    except CheckpointError as error:
        print(escaped(f"sebulba: CheckpointError: {error}"), file=sys.stderr)
        return EXIT_CHECKPOINT
    except Exception as error:
        traceback.print_exc()
        advice = f". {ENV_FLAG}" if isinstance(error, EnvironmentFault) else ""
        print(escaped(f"sebulba: {describe_error(error)}{advice}"), file=sys.stderr)
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


def _evaluate(options: argparse.Namespace, run_end: "RunEnd") -> bool:
    """Play the episodes, print and write the results; return whether any episode ended."""
    from sebulba.devices.compilation_cache import use_compilation_cache
    from sebulba.devices.known_answers import check_compiler
    from sebulba.devices.repeatable import use_repeatable_kernels
    from sebulba.devices.roles import check_platforms
    from sebulba.envs.closing import CloseProblem
    from sebulba.evaluation.playing import play
    from sebulba.evaluation.recording import Recording
    from sebulba.evaluation.rendering import check_rendering, load_opengl
    from sebulba.evaluation.statistics import summarize
    from sebulba.evaluation.stored import (
        checkpoints_of,
        load_stored_policy,
        parse_source,
        parse_which,
    )
    from sebulba.evaluation.tables import evaluation_table, evaluation_to_json
    from sebulba.evaluation.video import check_format, write_video
    from sebulba.storage.metrics.files import write_json

    def warn(problem: CloseProblem) -> None:
        run_end.is_closing = run_end.is_closing or problem.is_running
        print(f"warning: {problem}", file=sys.stderr)

    # Before anything is played.
    for flag, file in (("--json", options.json), ("--video", options.video)):
        check_writable(flag, file)
    sources, is_all = [options.run_dir, *options.opponents], options.checkpoint == "all"
    which = parse_which("latest" if is_all else options.checkpoint)
    if is_all:
        sources = [each for run_dir in sources for each in checkpoints_of(run_dir)]
    if options.video is not None:
        check_format(options.video)
        load_opengl()  # EnvPool looks for OpenGL only when it is imported.
    use_compilation_cache()
    # The same command is to give the same results. It starts JAX, so there is no reason to warn.
    use_repeatable_kernels("auto", is_exact=True)
    check_platforms()
    check_compiler()
    stored, *others = [
        load_stored_policy(
            *parse_source(source, default=which),
            imports=not options.no_imports,
            env=options.env if number == 0 else None,
        )
        for number, source in enumerate(sources)
    ]
    if others:
        return _play_matches(options, sources, [stored, *others], run_end, warn)
    if options.video is not None:
        check_rendering(stored.config.env)
    evaluation, protocol = play(
        stored,
        episodes=options.episodes,
        seed=options.seed,
        greedy=options.greedy,
        parallel_envs=options.parallel_envs,
        max_episode_steps=options.max_episode_steps,
        num_recorded=0 if options.video is None else options.video_episodes,
        is_interrupted=lambda: run_end.is_interrupted,
        on_problem=warn,
    )
    if run_end.is_interrupted:
        return False
    played = evaluation.result()
    statistics = summarize(played.records, seed=protocol["seed"])
    _print(evaluation_table(statistics, protocol, played))
    if options.json is not None:
        write_json(options.json, evaluation_to_json(statistics, protocol, played))
    if isinstance(recording := evaluation.environment, Recording):
        count = write_video(options.video, recording.frames(), fps=options.fps)
        limit = " (recording stopped at the frame limit)" if recording.is_truncated else ""
        print(f"{options.video}: {count:,} frames{limit}")
    return bool(played.records)


def _play_matches(
    options: argparse.Namespace,
    names: Sequence[str],
    runs: "list[StoredPolicy]",
    run_end: "RunEnd",
    warn: "Callable[[CloseProblem], None]",
) -> bool:
    """Play runs against each other, print and write the results; return whether any game ended."""
    from sebulba.evaluation.matches import elo_ratings, play_matches
    from sebulba.evaluation.tables import elo_table, match_table, matches_to_json
    from sebulba.storage.metrics.files import write_json

    matches, protocol = play_matches(
        runs,
        names=names,
        games=options.episodes,
        seed=options.seed,
        greedy=options.greedy,
        parallel_envs=options.parallel_envs,
        max_episode_steps=options.max_episode_steps,
        is_interrupted=lambda: run_end.is_interrupted,
        on_problem=warn,
    )
    if run_end.is_interrupted or not all(len(match.returns) for match in matches):
        return False
    ratings = elo_ratings(matches, len(runs), seed=protocol["seed"])
    env_steps = [run.env_steps for run in runs]
    _print(match_table(matches, names, protocol), elo_table(ratings, names, env_steps))
    if options.json is not None:
        results = matches_to_json(matches, ratings, names, env_steps)
        write_json(options.json, results | {"protocol": protocol})
    return True


def _print(*tables: "Table") -> None:
    import rich.console

    # A pipe has no width, and rich would wrap at 80 columns.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = rich.console.Console(width=width, highlight=False, markup=False)
    for table in tables:
        console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("evaluate"),
        description="Evaluate a trained policy in new environments and print its statistics.",
        epilog="Defaults not shown come from the evaluation section of the run's config.",
    )
    parser.set_defaults(env=())
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        help="directory of a finished or running run; RUN_DIR@best, RUN_DIR@latest or RUN_DIR@CYCLE"
        " chooses its checkpoint",
    )
    parser.add_argument(
        "opponents",
        metavar="OPPONENT_RUN_DIR",
        nargs="*",
        help="further runs: all play each other in the first one's game, and are rated",
    )

    def add_count(name: str, help: str, default: int | None = None) -> None:
        parser.add_argument(name, type=to_count, default=default, metavar="N", help=help)

    add_count("--episodes", "number of episodes, or of games of each pair; default: 100", 100)
    parser.add_argument(
        "--seed",
        type=_seed,
        metavar="S",
        help="seed of environments and sampled actions; default: the run's seed",
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|CYCLE|all",
        help="checkpoint to load, where a run names none; all: each checkpoint plays all others,"
        " and is rated; default: latest",
    )
    parser.add_argument(
        "--env.options.NAME",
        metavar="VALUE",
        help="argument of the environment that replaces the run's; also --env.options,"
        " --env.wrappers, --env.id and --env.suite, as in training",
    )
    add_count("--parallel-envs", "number of environments stepped together")
    add_count(
        "--max-episode-steps",
        "step budget per episode, pooled per environment; guarantees termination",
    )
    parser.add_argument(
        "--no-imports",
        action="store_true",
        help="refuse a run whose config names modules to import, for a run of somebody else",
    )
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument(
        "--greedy", action="store_const", const=True, help="act greedily, by the mode of the policy"
    )
    policy.add_argument(
        "--stochastic",
        action="store_const",
        const=False,
        dest="greedy",
        help="sample actions, as in training",
    )
    parser.add_argument("--json", metavar="FILE", help="write statistics and all episodes as JSON")
    parser.add_argument("--video", metavar="FILE", help="record episodes to a .gif or .mp4 file")
    add_count("--video-episodes", "number of episodes to record; default: 1", 1)
    add_count("--fps", "frames per second of the video; default: 25", 25)
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"expected an integer in [0, 2**31), got {text}")
    return int(text)


if __name__ == "__main__":
    run_command(main)
