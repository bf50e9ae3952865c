"""JAX at its strictest, on several virtual CPU devices, for every test."""

import os
import pathlib

# Tests compile far more than they compute. In the environment, so that runs in processes of their
# own compile the same way, to the same bits.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

CACHE = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
