"""One training run, from its config to its exit code.

Begin with `training.py`, the story of a run from top to bottom. `observers.py` lists who looks at
each learner cycle, `ending.py` is the one end of every run, and `resume.py` brings a new ring to a
checkpoint. Imports all rooms up to `evaluation`.
"""
