"""Rows that returns are computed of: three short episodes by hand, and random ones."""

import jax
import numpy as np

from sebulba.toolkit import returns
from tests.streams import random_env_steps

DISCOUNT = 0.9

# Each is one program: called as they are, they would be one for each operation.
vtrace = jax.jit(returns.vtrace, static_argnames=("lambda_", "clips"))
gae = jax.jit(returns.gae, static_argnames="lambda_")
n_step_returns = jax.jit(returns.n_step_returns, static_argnames="n")


def array(x, dtype=np.float32):
    return np.asarray(x, dtype)


def all_valid(x):
    return np.ones(np.shape(x), bool)


# Three steps of episode 1, truncated; a reset; two of episode 2, terminated; a reset; one of 3.
STREAM = {
    "rewards": array([1, 2, 3, 0, 4, 5, 0, 6]),
    "discounts": DISCOUNT * (1 - array([0, 0, 0, 0, 0, 1, 0, 0])),
    "valid": ~array([0, 0, 0, 1, 0, 0, 1, 0], bool),
    "values": array([0.5, -0.2, 0.3, 0.8, 1.1, -0.4, 0.9, 0.2, 0.6]),
}
STREAM_LOG_RHOS = np.log(array([0.5, 1.5, 0.8, 2, 0.7, 1.2, 0.6, 0.9]))


def random_stream(seed, length=12, num_envs=40):
    rows = random_env_steps(seed, length, num_envs)
    rng = np.random.default_rng(seed + 1000)
    valid = ~rows.done[:-1]
    assert (rows.truncated[1:] & valid).any() and (rows.terminated[1:] & valid).any()
    log_rhos = rng.normal(size=(length, num_envs)).astype(np.float32)
    arguments = {
        "rewards": rows.reward[1:],
        "discounts": (DISCOUNT * (1 - rows.terminated[1:])).astype(np.float32),
        "valid": valid,
        "values": rng.normal(size=(length + 1, num_envs)).astype(np.float32),
    }
    return arguments, log_rhos
