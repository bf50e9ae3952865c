"""The curves of runs and of their seeds, and the figures of them; imports no jax."""
