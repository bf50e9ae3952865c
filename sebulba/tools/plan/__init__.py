"""`sebulba.plan`: measure the parts of a config and propose faster settings.

Start with `command.py`.
"""
