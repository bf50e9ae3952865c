"""Acting: act cycles, the actors that run them, and the statistics of their episodes.

Begin with `act_cycle.py`, which both kinds of act cycle share; then `fused_cycle.py`,
`stepped_cycle.py` and `actor.py`. Imports everything below `hosts`, and never `learning`.
"""
