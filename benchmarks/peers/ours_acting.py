"""Run a config's actors without end and without a learner, and print the env steps acted."""

import sys
import threading

from benchmarks import rings
from sebulba.config.loading import load_config
from sebulba.ring.make import make_ring


def main(config: str, *flags: str) -> None:
    """Act until this process is killed."""
    ring = make_ring(load_config(config, flags))
    lock = threading.Lock()
    env_steps = 0

    def act(actor_id: int) -> None:
        nonlocal env_steps
        for item in rings.act_alone(ring, actor_id):
            with lock:
                env_steps += item.info.env_steps
                print(f"env steps: {env_steps}", flush=True)

    for actor_id in range(len(ring.actors)):
        threading.Thread(target=act, args=(actor_id,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
