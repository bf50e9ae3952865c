"""Sebulba: actor threads, one learner thread, and the two deques between them, for JAX."""
