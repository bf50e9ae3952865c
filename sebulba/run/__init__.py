"""One training run, from its config to its exit code.

Begin with `lifecycle.py`, which reads top-down as the life of a run; `assembly.py` builds the ring
of actors and learner, and `modes.py` runs it. `supervision.py` is the only module that creates
threads. Imports everything up to `evaluation`.
"""
