"""`sebulba.plot` and `sebulba.report`: a figure and an HTML page, made from run directories alone.

Start with `runs.py`. Nothing here imports jax.
"""
