"""Run a config's actors without end and without a learner, and print the env steps acted."""

import sys
import threading

from benchmarks import rings
from sebulba.config.loading import load_config


def main(config: str, *flags: str) -> None:
    """Act until this process is killed."""
    ring = rings.quiet_ring(load_config(config, flags))
    lock = threading.Lock()
    env_steps = 0

    def act(actor_id: int) -> None:
        nonlocal env_steps
        actor = ring.actors[actor_id]
        networks = ring.learner.networks_on(actor.device)
        while True:
            item = actor.act(networks, 0)
            with lock:
                env_steps += item.info.env_steps
                print(f"env steps: {env_steps}", flush=True)

    for actor_id in range(len(ring.actors)):
        threading.Thread(target=act, args=(actor_id,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
