"""Train a config without end, and print the env steps that have been learned from."""

import sys
import tempfile

import sebulba


def main(config: str, *flags: str) -> None:
    """Train until this process is killed."""

    def count(event: str, row: dict) -> None:
        if event == "metrics":
            print(f"env steps: {int(row['env_steps'])}", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        endless = ("--run.total-env-steps", "2000000000", "--run-dir", directory)
        sebulba.train(sebulba.load_config(config, (*endless, *flags)), callbacks=[count])


if __name__ == "__main__":
    main(*sys.argv[1:])
