"""Run a script of CleanRL as it stands, and print the env steps whenever it logs its speed."""

import runpy
import sys

from torch.utils import tensorboard

add_scalar = tensorboard.SummaryWriter.add_scalar


def counted(self, tag, value, step=None, *rest, **settings):
    """Log, and print the step."""
    add_scalar(self, tag, value, step, *rest, **settings)
    if tag == "charts/SPS":
        print(f"env steps: {step}", flush=True)


tensorboard.SummaryWriter.add_scalar = counted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
