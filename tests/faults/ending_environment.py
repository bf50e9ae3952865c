"""An environment that ends a run as ENDING says, for `tests.faults.random_endings`.

Worker processes import this: no jax.
"""

import json
import os
import pathlib
import subprocess
import time

import gymnasium
import numpy as np

PLAN = json.loads(os.environ.get("ENDING", "{}"))
CAUSE = "the cause of it all"
_ERRORS = {
    "error": RuntimeError(CAUSE),
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(CAUSE),
}
_PACE_S = 0.002  # per step, so that runs last long enough to be disturbed
_EPISODE_LENGTH = 7


def reached(moment):
    """Tell whoever started this process that a moment has come; the first time counts."""
    (pathlib.Path(PLAN["moments"]) / moment).touch()


def fail_if_planned(where):
    """Raise the plan's error if the run is to fail here."""
    if PLAN["fails"] == where:
        reached("failure")
        raise _ERRORS[PLAN["error"]]


class Ending(gymnasium.Env):
    """Steps slowly; fails where the plan says, and closes as it says once it was reset."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self._num_episodes = self._num_steps = 0
        fail_if_planned("constructor")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_episodes += 1
        fail_if_planned("first reset")
        if self._num_episodes > 5:
            fail_if_planned("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._num_steps += 1
        time.sleep(_PACE_S)
        if self._num_steps > 40:
            fail_if_planned("step")
            if PLAN["fails"] == "hang":
                reached("failure")
                time.sleep(3600)
        is_over = self._num_steps % _EPISODE_LENGTH == 0
        return np.zeros(3, np.float32), 1.0, is_over, False, {}

    def close(self):
        if not self._num_episodes:  # the one that only tells its spaces
            return
        how = PLAN["close"]
        if how == "raises":
            raise OSError("the window is gone")
        if how == "hangs":
            time.sleep(3600)
        if how == "exits":
            raise SystemExit(0)
        if how == "ends the process":
            os._exit(9)
        if how == "interrupts":
            raise KeyboardInterrupt("closed")
        if how == "leaves a child":
            subprocess.Popen(["sleep", "3600"])


gymnasium.register("Ending-v0", entry_point=Ending, disable_env_checker=True)
