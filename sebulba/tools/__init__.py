"""What the commands do: check, plan, evaluate, rerun, plot and report.

Each command line at the top of `sebulba` has its work here under the same name; `report/` serves
both `plot` and `report`. Imports everything up to `run`.
"""
