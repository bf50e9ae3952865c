"""What connects actors and learner: two deques, the schedule, the ledger and the clocks.

Begin with `queues.py`: the deque of trajectories and the staging deques of networks. `schedule.py`
decides which trajectory comes next and how old its networks may be, `ledger.py` counts every env
step, `timing.py` and `watchdog.py` measure the threads. Imports the contract and `storage`.
"""
