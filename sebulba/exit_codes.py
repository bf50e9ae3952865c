"""The exit codes of the command lines. Imports no jax."""

EXIT_DONE = 0
EXIT_CONFIG = 2
"""The config or the command line is wrong; nothing ran."""
EXIT_FAILED = 3
"""A component failed; the run can be resumed from its last checkpoint."""
EXIT_CHECKPOINT = 4
"""The checkpoint is damaged or does not fit the run."""
EXIT_STUCK = 5
"""The watchdog ended the run: an environment or the learner hangs."""
EXIT_NON_FINITE = 6
"""The loss or the gradients were not finite."""
EXIT_UNSAVED = 7
"""The run ended by its goal or a signal, but its last state could not be saved."""
EXIT_SIGNAL_BASE = 128
"""Plus the number of the signal that stopped the run: 129 SIGHUP, 130 SIGINT, 143 SIGTERM."""
