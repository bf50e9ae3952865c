"""The work of the commands check, evaluate, rerun, plot and report.

Each has the name of its command line at the top of `sebulba`; `report/` serves `plot` too. Imports
every package up to `run`.
"""
