"""What a run leaves on disk: its directory, its metrics and its checkpoints.

Begin with `run_dir.py`, which names every file. `metrics/` writes rows, `checkpoints/` saves and
restores pytrees of arrays. Imports the contract and `config`.
"""
