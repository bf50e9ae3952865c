"""`python -m tests.hosts.delayed_train SEED CONFIG …`: `sebulba.train` with random delays."""

import random
import sys

from sebulba.train import main
from tests.run.delays import insert_delays

if __name__ == "__main__":
    insert_delays(random.Random(sys.argv.pop(1)), 0.02)
    main()
