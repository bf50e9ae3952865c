"""Train another system and ours with several seeds each, and print their mean returns at the end.

    python -m benchmarks.peers.returns PAIR --python PEER_PYTHON --checkout DIR --env-steps 3e6
        [--seeds 1 2 3] [--only ours|peer] [--into FILE]

The pair is one of `benchmarks.peers` whose program prints returns. A mean return at the end is that
of the last 1,000 episodes, and of the peer the mean over the last twentieth of its updates. Runs
that the file of results has are not repeated, so that several commands can share the work.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import time

from benchmarks import learning
from benchmarks.peers.pairs import PAIRS, PEER_VARIABLES, Pair

_PROGRAMS = pathlib.Path(__file__).parent
_PREFIX = "return: "
_LAST_SHARE = 0.05


def of_ours(pair: Pair, seed: int, env_steps: int) -> dict[str, float]:
    """Train ours, and return the mean return at the end and the seconds of the process."""
    flags = [*pair.own_flags, "--run.total-env-steps", str(env_steps)]
    flags += ["--run.return-window", "1000"]
    run = learning.learn(str((_PROGRAMS / pair.config).resolve()), seed, flags)
    return {"return": run["final_return"], "process_s": run["process_s"]}


def of_peer(
    pair: Pair, seed: int, env_steps: int, *, python: str, checkout: str
) -> dict[str, float]:
    """Train the peer, and return the mean return at the end and the seconds of the process.

    Raises:
        RuntimeError: it failed; the message has what it printed.
    """
    arguments = [*pair.arguments(checkout), f"SEED={seed}", f"ENV_STEPS={env_steps}"]
    command = [python, str(_PROGRAMS / pair.program), *arguments]
    begin = time.perf_counter()
    variables = os.environ | PEER_VARIABLES
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", env=variables)
    if run.returncode:
        raise RuntimeError(f"expected exit code 0, got {run.returncode}: {command}\n{run.stderr}")
    seconds = time.perf_counter() - begin
    return {"return": mean_at_the_end(run.stdout), "process_s": round(seconds, 1)}


def mean_at_the_end(output: str) -> float:
    """Return the mean of the last returns that a program has printed.

    An update in which no episode ended has none.
    """
    lines = output.splitlines()
    returns = [float(line.removeprefix(_PREFIX)) for line in lines if line.startswith(_PREFIX)]
    returns = [each for each in returns if not math.isnan(each)]
    count = max(1, int(_LAST_SHARE * len(returns)))
    return statistics.fmean(returns[-count:])


def main() -> None:
    """Train what the file of results does not have, and print all that it has of the pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [name for name, pair in PAIRS.items() if pair.prints_returns]
    parser.add_argument("pair", choices=names)
    parser.add_argument("--python", help="interpreter of the peer's environment")
    parser.add_argument("--checkout", help="checkout of the peer's repository")
    parser.add_argument("--env-steps", type=lambda text: int(float(text)), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", choices=["ours", "peer"], help="train one of the two")
    parser.add_argument("--into", type=pathlib.Path, help="file of results, a JSON value a line")
    options = parser.parse_args()
    if options.only != "ours" and not (options.python and options.checkout):
        parser.error(f"expected --python and --checkout\n\n{PAIRS[options.pair].describe()}")
    pair, text = PAIRS[options.pair], ""
    if options.into and options.into.is_file():
        text = options.into.read_text()
    results = [json.loads(line) for line in text.splitlines()]
    for seed in options.seeds:
        for who in ("ours", "peer") if options.only is None else (options.only,):
            key = {"pair": pair.name, "who": who, "seed": seed, "env_steps": options.env_steps}
            if any(key.items() <= each.items() for each in results):
                continue
            if who == "ours":
                trained = of_ours(pair, seed, options.env_steps)
            else:
                trained = of_peer(
                    pair,
                    seed,
                    options.env_steps,
                    python=options.python,
                    checkout=options.checkout,
                )
            results.append(key | trained)
            print(json.dumps(results[-1]), flush=True)
            if options.into:
                with options.into.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    for who in ("ours", "peer"):
        wanted = {"pair": pair.name, "who": who, "env_steps": options.env_steps}
        found = [each for each in results if wanted.items() <= each.items()]
        if found:
            of_seeds = ", ".join(f"{each['seed']}: {each['return']:.2f}" for each in found)
            mean = statistics.fmean(each["return"] for each in found)
            print(f"{who:4} {mean:8.2f}, by seed {of_seeds}")


if __name__ == "__main__":
    main()
