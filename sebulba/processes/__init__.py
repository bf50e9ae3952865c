"""Start training runs as child processes of a command. Imports no jax.

`children.py` starts them and forwards signals, `cores.py` gives each its CPU cores, and
`command_line.py` takes the flags of the command that starts them out of their command line.
"""
