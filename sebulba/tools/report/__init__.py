"""`sebulba.plot` and `sebulba.report`: figures and an HTML page from run directories alone.

Begin with `runs.py`. Nothing here imports jax.
"""
