"""Start training runs as child processes of a command. Imports no jax.

`runs.py` trains several runs, some at a time; `children.py` starts a process and forwards signals
to it, `cores.py` gives it its CPU cores, `command_line.py` takes the flags of the command out of
the command line of its runs, and `seeds.py` says whether its seeds are one program.

On other machines each run is the child of a process of its own, `run_holder.py`. `remote_runs.py`
follows them from here, and `ray_runs.py` asks Ray for them. `remote_process.py` is how any process
elsewhere is asked, `ray_process.py` is one that Ray starts, and `ray_cluster.py` joins Ray.
"""
