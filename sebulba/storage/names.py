"""The names of the files in a run directory, and of keys in them. Imports nothing."""

CONFIG = "config.yaml"
RUN = "run.json"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
METRICS_TABLE = "metrics.csv"
EVALUATIONS = "evaluations.jsonl"
CHECKSUMS = "checksums.jsonl"
NON_FINITE = "non_finite.json"
"""Which non-finite update stopped the run, and the checkpoint with the inputs of that update."""
LOCK = "run.lock"
CHECKPOINTS = "checkpoints"
ARRAYS = "arrays.npz"
MANIFEST = "manifest.json"
"""The two files of a checkpoint."""
VIDEOS = "videos"
PROFILE = "profile"
HOSTS = "hosts"
"""Holds the directories of all hosts except the first."""
EARLIER = "earlier"
"""Holds what runs here have left that learned nothing or went back to an earlier checkpoint."""

MAPPED_SEEDS = "mapped_seeds"
"""In each start of `run.json`: the seeds that share its program; none: a program of its own."""
CHANGES = "changes"
"""In each resume of `run.json`: the settings that are others than the run's, by dotted key."""
SOURCES = "sources"
"""In `run.json`: the file of each module that the config names."""

GOALS = (
    "run.total_env_steps",
    "run.total_episodes",
    "run.total_learner_cycles",
    "run.stop_at_return",
)
"""Settings that end a run."""
