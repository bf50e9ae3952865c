"""Several processes of one run: its hosts.

Begin with `agreement.py`: the decisions that all hosts make after each learner cycle.
`rendezvous.py` waits for all hosts, `connection.py` connects and compares them, `joining.py` makes
the decisions before the first cycle.
"""
