"""Evaluation of a stored policy: episodes, statistics and videos.

Begin with `episodes.py`. `stored.py` loads a policy from a run directory; `policy.py` wraps it as a
function for custom loops. Imports the ring, `storage` and what is below them.
"""
