"""Learning: the update of one device, and the learner that maps it over all of them.

Begin with `update.py`, then `learner.py`; `progress.py` counts, writes rows of metrics and decides
when the goal is reached. Imports everything up to `hosts`, and never `acting`.
"""
