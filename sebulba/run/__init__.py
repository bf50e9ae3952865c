"""The story of a run, its observers, and its one end.

Begin with `training.py`, which reads top-down as the life of a run. `observers.py` lists everything
that looks at a learner cycle, in its order; `ending.py` closes, saves and reports.
"""
