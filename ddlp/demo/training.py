"""What the demo's training does with a batch: a stand-in that takes a set time, or a small network."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Step = Callable[[Any, Any], None]  # images, labels


def stand_in(step_s: float) -> Step:
    """A step that takes `step_s` seconds and no CPU, as one on an accelerator does."""

    def step(_images: Any, _labels: Any) -> None:
        time.sleep(step_s)

    return step


def accelerator() -> str:
    """Where a network is trained here, as a torch device."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def small_network(classes: int, threads: int) -> Step:
    """A training step of a small convolutional network, on the accelerator or on so many threads of the CPU."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    network = nn.Sequential(
        *(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)),
    )
    return _step(network.to(accelerator()))


def _step(network: nn.Module) -> Step:
    from torch import nn, optim

    optimizer = optim.SGD(network.parameters(), lr=0.01)
    device = next(network.parameters()).device

    def step(images: Any, labels: Any) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images.to(device)), labels.to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()  # an accelerator that works by itself is waited for here

    return step
