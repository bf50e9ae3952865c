"""Playing a stored policy: episodes, their statistics, and videos of them.

Begin with `episodes.py`. `stored.py` loads a policy from a run directory, and `policy.py` wraps it
as a function for loops of one's own. Imports everything up to `acting`.
"""
