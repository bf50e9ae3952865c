"""`sebulba.evaluate`, the command line and the function: play episodes with a stored policy.

Start with `function.py`; `arguments.py` and `command.py` are the command line.
"""
