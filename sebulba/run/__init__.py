"""The story of a run, its observers, and its one end.

Begin with `training.py`, which reads top-down as the life of a run; `mapped_runs.py` is that of the
runs of several seeds as one program. `observers.py` lists everything that looks at a learner cycle,
in its order; `ending.py` closes, saves and reports. `rerun_update.py` and `rerun_batch.py` repeat a
part of a run that has ended.
"""
