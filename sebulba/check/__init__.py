"""`sebulba.check`: prove that an agent and an environment work together.

Start with `suite.py`, the list of all checks.
"""
