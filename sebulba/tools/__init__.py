"""The work of the command check.

Each has the name of its command line at the top of `sebulba`. Imports every package up to `run`.
"""
