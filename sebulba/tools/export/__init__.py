"""Export a trained policy as files that need JAX and NumPy only.

Begin with `command.py`; `sebulba.export_loader` is copied beside the files and loads them.
"""
