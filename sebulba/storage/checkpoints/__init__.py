"""Checkpoints: a pytree of arrays that is whole or refused.

Begin with `checkpointer.py`; `restore.py` reads what it wrote, checked against `manifest.py`.
"""
