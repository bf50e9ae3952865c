"""The devices of this process: which of them act and learn, and what lies on them.

Begin with `learner_devices.py`: the learner devices as a mesh. `split.py` assigns the roles,
`mapping.py` maps a per-device function over the learner devices, `memory_plan.py` computes what a
run will hold before anything is allocated. Imports the contract, `toolkit` and `config`.
"""
