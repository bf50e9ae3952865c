"""The devices of this process: their roles, and how arrays are placed on them.

Begin with `learner_devices.py`: the learner devices as a mesh. `split.py` assigns the roles,
`mapping.py` maps a function of one device over the learner devices, `memory_plan.py` computes the
memory of a run before it allocates any, `xla_cpu.py` holds the workarounds for XLA on a CPU,
`xla_flags.py` sets its flags, and `known_answers.py` tests at the start whether it computes right.
Imports the contract, `toolkit` and `config`.
"""
