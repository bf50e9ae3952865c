"""Start training runs as child processes of a command. Imports no jax.

    runs            several runs, some at a time
    children        one process, which gets the signals of the command
    cores           the CPU cores of each process
    command_line    the command's own flags, taken out of the command line of its runs
    seeds           whether the seeds of a command are one program
    grid            runs of every combination of settings and seeds

On other machines each run is the child of a process of its own:

    run_holder      that process
    remote_runs     follows the runs from here
    ray_runs        asks Ray for their processes
    remote_process  how any process elsewhere is asked
    ray_process     a process that Ray starts
    ray_cluster     joins Ray; what a process asks of it
"""
