"""Export a trained policy: `python -m sebulba.export RUN_DIR [-o DIRECTORY]`."""

import argparse
import sys

from sebulba.process import program, run_command


def main() -> None:
    """Parse the command line, export, and exit with 0, 2 or 4."""
    options = _parser().parse_args()
    # Imported late: jax takes over a second, which --help and usage errors should not cost.
    from sebulba.tools.export.command import export

    sys.exit(export(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("export"),
        description="Writes a trained policy as a compiled function (jax.export), its arrays and a"
        " module that loads them with JAX and NumPy only.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a finished or running run")
    parser.add_argument(
        "-o", "--output", metavar="DIRECTORY", help="default: export in the run directory"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|CYCLE",
        help="checkpoint to load; default: latest",
    )
    parser.add_argument(
        "--num-envs",
        type=int,
        default=1,
        metavar="B",
        help="number of environments that each call acts in; default: 1",
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="sample actions, as in training; default: greedy"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the samples")
    parser.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="P,P",
        help="platforms to compile for: cpu, cuda, rocm, tpu; default: cpu,cuda,tpu",
    )
    return parser


if __name__ == "__main__":
    run_command(main)
