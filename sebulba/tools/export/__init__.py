"""Export a trained policy as files that need JAX and NumPy only.

Begin with `command.py`; `standalone.py` is copied beside the files and loads them.
"""
