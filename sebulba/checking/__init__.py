"""Proves an agent and an environment right together, through the real pipeline.

The environment is replaced by a *probe* of the same spaces, whose stream is known in advance; the
agent is wrapped to keep what it is given. Everything between them is what a run uses.
"""
