"""Run a script of CleanRL as it stands, and print the env steps whenever it logs its speed."""

import os
import pathlib
import runpy
import sys
import tempfile

from torch.utils import tensorboard

add_scalar = tensorboard.SummaryWriter.add_scalar


def counted(self, tag, value, step=None, *rest, **settings):
    """Log, and print the step."""
    add_scalar(self, tag, value, step, *rest, **settings)
    if tag == "charts/SPS":
        print(f"env steps: {step}", flush=True)


tensorboard.SummaryWriter.add_scalar = counted
sys.argv = [str(pathlib.Path(sys.argv[1]).resolve()), *sys.argv[2:]]
os.chdir(tempfile.gettempdir())  # The script writes its logs to the working directory.
runpy.run_path(sys.argv[0], run_name="__main__")
