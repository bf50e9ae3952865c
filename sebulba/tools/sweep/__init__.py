"""Train a config with several values of its settings and several seeds, and compare the results.

Begin with `command.py`. Nothing here imports jax before the results are read.
"""
