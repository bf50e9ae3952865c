"""Checkpoints: a pytree of arrays that is restored complete and verified, or refused.

Begin with `checkpointer.py`; `restore.py` reads what it wrote and checks it against `manifest.py`.
"""
