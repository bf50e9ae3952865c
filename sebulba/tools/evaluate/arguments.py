"""Evaluate a trained policy, from the command line `RUN_DIR [--episodes N ...]`."""

import argparse
import sys

from sebulba.process import program


def main() -> None:
    """Parse the command line, evaluate, and exit with one of the codes that training uses."""
    options = _parser().parse_args()
    # Imported late: jax takes over a second, which --help and usage errors should not cost.
    from sebulba.tools.evaluate.command import evaluate

    sys.exit(evaluate(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("evaluate"),
        description="Evaluate a trained policy in new environments and print its statistics.",
        epilog="Defaults not shown come from the evaluation section of the run's config.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a finished or running run")

    def add_count(name: str, help: str, default: int | None = None) -> None:
        parser.add_argument(name, type=_at_least_one, default=default, metavar="N", help=help)

    add_count("--episodes", "number of episodes; default: 100", 100)
    parser.add_argument(
        "--seed",
        type=_seed,
        metavar="S",
        help="seed of environments and sampled actions; default: the run's seed",
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|CYCLE",
        help="checkpoint to load; default: latest",
    )
    add_count("--parallel-envs", "number of environments stepped together")
    add_count(
        "--max-episode-steps",
        "step budget per episode, pooled per environment; guarantees termination",
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


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"expected a number in [0, 2**31), got {value}")
    return value
