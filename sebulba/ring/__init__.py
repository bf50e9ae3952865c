"""What actors and the learner share: the two deques, their order, the ledger and the clocks.

Begin with `queues.py`: the deque of trajectories and the staging deque of networks. `schedule.py`
says whose trajectory comes next and how old its networks may be, `ledger.py` counts every env step,
`timing.py` and `watchdog.py` watch how long things take. Imports the contract and `storage`.
"""
