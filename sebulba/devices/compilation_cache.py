"""Compiled programs that are kept between runs."""

import pathlib

import jax


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, unless the user has chosen a directory."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = pathlib.Path.home() / ".cache" / "sebulba" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        # A start has some twenty programs that take hundredths of a second each.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
