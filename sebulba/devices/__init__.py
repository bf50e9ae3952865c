"""The devices of this process: their roles, and how arrays are placed on them.

Begin with `learner_devices.py`: the learner devices as a mesh. `roles.py` assigns the roles,
`mapping.py` maps a function of one device over the learner devices, `small_networks.py` tells who
would act faster on the CPU, `memory.py` computes the memory of a run before it allocates any,
`xla_workarounds.py` holds workarounds for XLA on a CPU, `xla_flags.py` sets XLA's flags,
`repeatable.py` those of repeatable runs on a GPU, `tuner_lines.py` drops the lines of its tuner,
and `known_answers.py` tests at the start whether XLA computes correctly. `chips.py` describes
devices that are not here, and `compiled.py` reads programs that were compiled for them.
Imports the contract, `toolkit` and `config`.
"""
