"""Several processes: hosts that train together, and runs that this process starts.

Begin with `agreement.py`: what the hosts decide together after each learner cycle. `connection.py`
finds and compares them, `joining.py` settles what has to be settled before the first cycle.
`local.py` starts the hosts of one run as processes on this machine, `seeds.py` one run for each
seed; both use `children.py` and import no jax.
"""
