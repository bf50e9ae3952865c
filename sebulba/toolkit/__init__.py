"""What agents are made of: returns, distributions, reductions, replay and their like.

Each module is one idea of arithmetic or memory, and none knows an algorithm. Begin with
`returns.py`. Apart from the contract (`sebulba.types`, `sebulba.agent`, …) this is the only package
of `sebulba` that an agent imports, and it imports nothing but the contract.
"""
