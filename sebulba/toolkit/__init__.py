"""Building blocks of agents: returns, distributions, networks, optimizers, replay.

Each module is one block, and none depends on an algorithm. Start reading at `returns.py`. An agent
imports only this package and the contract (`sebulba.types`, `sebulba.agent`, …) from `sebulba`, and
this package imports only the contract.
"""
