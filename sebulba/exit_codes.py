"""What the exit code of a command line says. Imports no jax."""

EXIT_DONE = 0
EXIT_CONFIG = 2
"""The config or the command line is wrong; nothing was done."""
EXIT_FAILED = 3
"""A part of the run failed; it can be resumed."""
EXIT_CHECKPOINT = 4
"""A checkpoint cannot be used."""
EXIT_STUCK = 5
"""The watchdog ended the run."""
EXIT_NON_FINITE = 6
"""A loss or gradients were not finite."""
EXIT_SIGNAL_BASE = 128
"""Plus the number of the signal that stopped the run: 129 SIGHUP, 130 SIGINT, 143 SIGTERM."""
