"""Rows of metrics and their writers; begin with `writers.py`."""
