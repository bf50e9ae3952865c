"""`sebulba.check`: proves an agent and an environment right together.

Begin with `suite.py`, the list of all checks.
"""
