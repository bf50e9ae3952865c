"""Plot runs: `python -m sebulba.plot RUN_DIR... -o FILE`."""

import argparse
import json
import pathlib
import sys

from sebulba.errors import ConfigError, refuse
from sebulba.process import program, run_command

_DEFAULT_X, _DEFAULT_Y = "env_steps", "episode_return_mean"


def main() -> None:
    """Plot, print the file, and exit with 0, or 2 if there is nothing to plot or no matplotlib."""
    parser = argparse.ArgumentParser(
        prog=program("plot"),
        description=(
            "Plots mean returns over env steps and over wall time, speed, the threads' time by"
            " activity, and policy lag, or any columns of metrics.jsonl. Runs that differ only in"
            " their seed share a line: their interquartile mean, with its 95 % bootstrap interval"
            " for three or more seeds. Each environment has panels of its own."
        ),
    )
    parser.add_argument(
        "run_dirs", nargs="*", metavar="RUN_DIR", help="run directory, or a directory of several"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="file to write or overwrite: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--y",
        metavar="COLUMN,…",
        type=_names,
        help=f"columns of metrics.jsonl to plot, one panel each; default: {_DEFAULT_Y}",
    )
    parser.add_argument(
        "--x",
        metavar="COLUMN,…",
        type=_names,
        help=f"columns to plot them over, one panel each; default: {_DEFAULT_X}",
    )
    parser.add_argument(
        "--panels",
        metavar="NAME,…",
        type=_names,
        help="panels to draw, of returns, returns_over_time, speed, time, lag, win_rates and"
        " remote_actors; default: all",
    )
    parser.add_argument(
        "--mean", action="store_true", help="plot the mean over seeds and its bootstrap interval"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="file to write --y over --x to as JSON, in the shapes that rliable takes",
    )
    parser.add_argument(
        "--matches",
        metavar="FILE",
        help="plot the --json of evaluate with several runs or --checkpoint all instead of runs:"
        " Elo over env steps, and the score of each pair",
    )
    arguments = parser.parse_args()
    if arguments.matches is None and not arguments.run_dirs:
        parser.error("expected RUN_DIR or --matches FILE, got neither")
    if arguments.matches is not None and (arguments.run_dirs or arguments.json):
        parser.error("--matches: expected no RUN_DIR and no --json, got them")
    if arguments.output is None and arguments.json is None:
        parser.error("expected -o FILE or --json FILE, got neither")
    if arguments.panels and (arguments.x or arguments.y):
        parser.error("expected --panels, or --y and --x, got both")
    xs, ys = arguments.x or [_DEFAULT_X], arguments.y or [_DEFAULT_Y]
    # Importing numpy takes time, so command line errors and --help come first.
    from sebulba.figures.curves import group_runs, scores
    from sebulba.figures.drawing import PANELS, Panel, plot_runs
    from sebulba.figures.matches import plot_matches
    from sebulba.storage.run_files import read_runs

    panels: list[Panel] = [(x, y) for y in ys for x in xs]
    if arguments.x is None and arguments.y is None:
        unknown = [name for name in arguments.panels or () if name not in PANELS]
        if unknown:
            parser.error(f"--panels: expected names of {', '.join(PANELS)}, got {unknown[0]}")
        panels = [PANELS[name] for name in arguments.panels or PANELS]
    try:
        if arguments.json is not None:
            if len(xs) > 1 or len(ys) > 1:
                raise ConfigError("--json: expected one --x and one --y, got several")
            exported = scores(group_runs(read_runs(arguments.run_dirs)), x=xs[0], y=ys[0])
            pathlib.Path(arguments.json).write_text(json.dumps(exported) + "\n")
            print(f"wrote {arguments.json}")
        if arguments.matches is not None:
            plot_matches(arguments.matches, arguments.output)
            print(f"wrote {arguments.output}")
        elif arguments.output is not None:
            plot_runs(arguments.run_dirs, arguments.output, panels=panels, use_mean=arguments.mean)
            print(f"wrote {arguments.output}")
    except (ConfigError, OSError) as error:
        sys.exit(refuse(error))


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    run_command(main)
