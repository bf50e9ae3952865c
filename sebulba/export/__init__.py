"""A trained policy as files that need JAX and NumPy only. `loader` is copied beside them."""
