"""Training runs as processes that this one starts. Imports no jax."""
