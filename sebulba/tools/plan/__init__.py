"""`sebulba.plan`: measures the parts of a config and proposes a better split.

Begin with `command.py`.
"""
