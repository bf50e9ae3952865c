"""The networks of `benchmarks.convolutions` in PyTorch, in a process with its own environment.

    PYTHON benchmarks/torch_networks.py NETWORK BATCH_SIZE

For each line of stdin, `forward` or `gradient`, prints observations per second. Imports torch only.
"""

import sys
import time

import torch
from torch import nn

_UPDATES = 3


class Residual(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[N, C, H, W]` of as many."""
        return x + self.layers(x)


def make_network(name: str) -> nn.Module:
    """Return the network, for images of 4 channels and 84×84."""
    if name == "dqn":
        return nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
        )
    layers: list[nn.Module] = []
    before = 4
    for channels in (16, 32, 32):
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [Residual(channels), Residual(channels)]
        before = channels
    return nn.Sequential(
        *layers, nn.ReLU(), nn.Flatten(), nn.Linear(before * 11 * 11, 256), nn.ReLU()
    )


def main() -> None:
    """Measure until stdin ends."""
    network, batch_size = make_network(sys.argv[1]), int(sys.argv[2])
    images = torch.randint(0, 256, (batch_size, 4, 84, 84), dtype=torch.uint8)

    def forward() -> None:
        with torch.no_grad():
            network(images / 255.0)

    def gradient() -> None:
        network.zero_grad()
        network(images / 255.0).square().sum().backward()

    work = {"forward": forward, "gradient": gradient}
    for line in sys.stdin:
        run = work[line.strip()]
        begin = time.perf_counter()
        for _ in range(_UPDATES):
            run()
        print(_UPDATES * batch_size / (time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main()
