"""Rows of metrics and the writers that take them; begin with `writers.py`."""
