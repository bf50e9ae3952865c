"""What runs have left in their directories, as pictures and pages. Imports no jax."""
