"""Several processes: the hosts of one run, and runs that this process starts.

Begin with `agreement.py`: the decisions that all hosts make after each learner cycle.
`rendezvous.py` waits for all hosts, `connection.py` connects and compares them, `joining.py` makes
the decisions before the first cycle. `local.py` starts the hosts of one run on this machine,
`seeds.py` a run for each seed; they use `sebulba.processes`, and import no jax.
"""
