"""JAX at its strictest, on several virtual CPU devices, for every test."""

import os
import pathlib
import threading

# Tests compile far more than they compute. In the environment, so that runs in processes of their
# own compile the same way, to the same bits.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax
import pytest

from tests.packages import make_package

if jax.__version_info__[:2] == (0, 10):  # XLA ends the process at a flag that it does not know.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
        " --xla_cpu_parallel_codegen_split_count=1"
    )

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

HASTE = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # not for what computes more than that
CACHE = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture
def no_thread_is_left():
    """Fails a test that leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    for thread in left:
        if thread.name.startswith("asyncio_"):  # Orbax tells these to end, and does not wait.
            thread.join(60.0)
    assert [thread for thread in left if thread.is_alive()] == []


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Returns `make_package` into a directory on `sys.path`, `tmp_path` if none is named."""

    def install_package(name, *, modules, entry_points, path=tmp_path):
        make_package(path, name, modules=modules, entry_points=entry_points)
        monkeypatch.syspath_prepend(path)

    return install_package
