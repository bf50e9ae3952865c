"""Learning: what an update computes on each device, and the learner that drives it.

Begin with `update.py`, then `learner.py`; `progress.py` counts, reports and knows when the goal is
reached. Imports everything up to `hosts`, and never `acting`.
"""
