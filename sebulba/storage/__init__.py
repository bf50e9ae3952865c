"""Everything a run writes to disk: its directory, its metrics and its checkpoints.

Begin with `names.py` and `run_dir.py`. `metrics/` writes rows of metrics, `checkpoints/`
saves and restores pytrees of arrays.
"""
