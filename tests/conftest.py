"""JAX at its strictest, on several virtual CPU devices, for every test."""

import gc
import itertools
import os
import pathlib
import sys
import threading

# Each of the hundreds of processes that tests start would compile the project's modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests compile far more than they compute. In the environment, so that runs in processes of their
# own compile the same way, to the same bits.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Nobody reads where in the source each operation of a test comes from.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

import jax
import pytest

from tests import ir_contexts, ring_programs
from tests.packages import make_package

sys.dont_write_bytecode = False  # also of the tests, whose assertions pytest rewrites

if jax.__version_info__[:2] == (0, 10):  # XLA ends the process at a flag that it does not know.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
        " --xla_cpu_parallel_codegen_split_count=1"
    )
if jax.__version_info__[:3] == (0, 10, 2):  # Not every earlier one may know this flag.
    os.environ["XLA_FLAGS"] += " --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

HASTE = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # not for what computes more than that
CACHE = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def pytest_collection_finish():
    ir_contexts.share()
    ring_programs.share()
    # Tracing makes millions of objects, and no test needs to find those of the imports again.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


_num_tests = itertools.count(1)


def pytest_runtest_setup(item):
    ring_programs.choose_for(item)
    if next(_num_tests) % 200 == 0:  # What programs have been traced stays in caches.
        gc.collect()
        gc.freeze()


@pytest.fixture
def lenient_jax():
    """Allows the implicit promotion that other packages' environments need."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def no_thread_is_left():
    """Fails a test that leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread for thread in left if thread.is_alive()] == []


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Returns `make_package` into a directory on `sys.path`, `tmp_path` if none is named."""

    def install_package(name, *, modules, entry_points, path=tmp_path):
        make_package(path, name, modules=modules, entry_points=entry_points)
        monkeypatch.syspath_prepend(path)

    return install_package


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """Returns the run directory of a config by its name; trained at the first request.

    The one of `impala evaluated` is that of `impala`, with evaluation during training.
    """
    # Not for every test: this imports all of the project.
    from sebulba.config import EvaluationConfig
    from sebulba.run import training
    from tests.evaluation.runs import tiny_config

    directories = {}

    def run(name):
        if name not in directories:
            path = tmp_path_factory.mktemp("runs") / name.replace(" ", "-")
            evaluation = EvaluationConfig(interval_env_steps=60, episodes=4, parallel_envs=2)
            is_evaluated = name.endswith(" evaluated")
            config = tiny_config(
                name.removesuffix(" evaluated"),
                path,
                evaluation=evaluation if is_evaluated else None,
            )
            assert training.train_to_exit_code(config) == 0
            directories[name] = path
        return directories[name]

    return run


@pytest.fixture(scope="session")
def policy_of(run_of):
    """Returns the greedy policy of a run, loaded at the first request."""
    import sebulba

    policies = {}

    def policy(name):
        if name not in policies:
            policies[name] = sebulba.load_policy(run_of(name))
        return policies[name]

    return policy
