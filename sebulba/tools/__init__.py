"""The work of the command check. Imports every package up to `run`."""
