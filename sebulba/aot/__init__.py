"""A run's programs for devices that are not here: traced with shapes, compiled ahead of time.

Files:

    chips     the accelerators and their peaks
    program   one traced program, and what its compiler says of it
    tracing   all programs of a run
    launches  the kernels of a compiled program, counted
    report    do they fit, and what do they reach at best?
"""
