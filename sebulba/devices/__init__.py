"""The devices of this process: their roles, and how arrays are placed on them.

Files:

    learner_devices    the learner devices as a mesh; begin here
    roles              which devices act and which learn
    mapping            a function of one device over the learner devices
    small_networks     who would act faster on the CPU
    memory             the memory of a run, before it allocates any
    compilation_cache  compiled programs that are kept between runs
    known_answers      a test at the start: does XLA compute correctly?
    xla_workarounds    workarounds for XLA on a CPU
    xla_flags          XLA's flags
    repeatable         XLA's flags for repeatable runs on a GPU
    tuner_lines        drops the lines that XLA's tuner writes
    variables          environment variables that JAX and XLA read
"""
