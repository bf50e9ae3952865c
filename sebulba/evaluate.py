"""Evaluates a trained policy: `python -m sebulba.evaluate RUN_DIR [--episodes N ...]`."""

import argparse
import sys


def main() -> None:
    """Parses the command line, evaluates, and exits with a code as training's."""
    options = _parser().parse_args()
    # Not before the command line is known to be right: importing jax takes a second.
    from sebulba.tools.evaluate import evaluate

    sys.exit(evaluate(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sebulba.evaluate",
        description="Plays a trained policy in environments of its own, and says how good it is.",
        epilog="What is not given is as in the evaluation section of the run's config.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="of a run, which may still be going on")
    parser.add_argument(
        "--episodes", type=_at_least_one, default=100, metavar="N", help="default: 100"
    )
    parser.add_argument(
        "--seed", type=_seed, metavar="S", help="of environments and samples; default: the run's"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|CYCLE",
        help="of which learner cycle; default: latest",
    )
    parser.add_argument(
        "--parallel-envs",
        type=_at_least_one,
        metavar="N",
        help="environments stepped together",
    )
    parser.add_argument(
        "--max-episode-steps",
        type=_at_least_one,
        metavar="N",
        help="env steps that an environment is given for each of its episodes",
    )
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument(
        "--greedy", action="store_const", const=True, help="act by the mode of the policy"
    )
    policy.add_argument(
        "--stochastic",
        action="store_const",
        const=False,
        dest="greedy",
        help="act by samples, as in training",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures and every episode")
    parser.add_argument("--video", metavar="FILE", help="record episodes, as .gif or .mp4")
    parser.add_argument(
        "--video-episodes", type=_at_least_one, default=1, metavar="N", help="default: 1"
    )
    parser.add_argument(
        "--fps", type=_at_least_one, default=25, metavar="N", help="pictures a second; default: 25"
    )
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


if __name__ == "__main__":
    main()
