"""Everything a run writes to disk: its directory, its metrics and its checkpoints.

Begin with `run_dir.py`, which names every file. `metrics/` writes rows of metrics, `checkpoints/`
saves and restores pytrees of arrays.
"""
