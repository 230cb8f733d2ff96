"""Train a small network on a folder of images, and go on where it stopped.

Try `python examples/train_image_folder.py ~/images --device cuda --checkpoint run.pt`. Images lie in one folder per
class; without a folder, photo-like ones are made up. Stop it at any time, with Ctrl-C or worse: the same command goes
on after the last batch that the checkpoint knows, with every other batch of that epoch once, made of the same samples
with the same augmentation.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import torch
from torch import nn

import ddlp
from ddlp.data.synthetic import make_photos


def network(classes: int) -> nn.Module:
    """A convolutional network that a CPU trains in no time: (batch, 3, height, width) -> (batch, classes)."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 5, stride=4), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)),
    )


class Run:
    """A network in training, its loader, and the checkpoint that holds both."""

    def __init__(self, loader: ddlp.Loader, classes: int, device: str, checkpoint: str | None) -> None:
        torch.manual_seed(0)
        self.loader = loader
        self.network = network(classes).to(device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.checkpoint = checkpoint
        self.epoch = 0
        self.batches = 0

    def train(self, epochs: int, save_every: int, stop_after: int | None) -> None:
        """Train until `epochs` are done; `stop_after` so many batches plays the machine that fails."""
        while self.epoch < epochs:
            for images, labels in self.loader:
                loss = self.step(images, labels)
                self.batches += 1
                if self.batches % save_every == 0:
                    self.save()
                if self.batches == stop_after:
                    print(f"stopped in epoch {self.epoch} after batch {self.loader.info.index}")
                    return
            print(f"epoch {self.epoch}: loss of the last batch {loss:.3f}")
            print(self.loader.explain())
            self.epoch += 1
            self.save()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.network(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self) -> None:
        """Replace the checkpoint at once, so that it is always a whole one."""
        if self.checkpoint is None:
            return
        torch.save(self.state(), f"{self.checkpoint}.new")
        os.replace(f"{self.checkpoint}.new", self.checkpoint)

    def state(self) -> dict[str, Any]:
        """The loader's state counts the batch that was just trained on as used."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "loader": self.loader.state_dict(),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def resume(self) -> None:
        """Go on where the checkpoint was written, if there is one."""
        if self.checkpoint is None or not os.path.exists(self.checkpoint):
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.epoch, self.batches = state["epoch"], state["batches"]
        self.loader.load_state_dict(state["loader"])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        print(f"goes on in epoch {self.epoch} after {self.batches} batches in all")


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as temporary:
        folder = ddlp.ImageFolder(arguments.folder or make_photos(temporary, classes=4, per_class=60))
        with ddlp.Loader(
            folder,
            ddlp.recipes.imagenet_train(arguments.size),
            batch_size=arguments.batch_size,
            shuffle=True,
            devices=[ddlp.CpuPool(arguments.workers), ddlp.EmulatedCsd(slowdown=4)],
            policy=arguments.policy,
            target=arguments.device,
        ) as loader:
            run = Run(loader, len(folder.classes), arguments.device, arguments.checkpoint)
            run.resume()
            run.train(arguments.epochs, arguments.save_every, arguments.stop_after)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", nargs="?", help="FOLDER/class/name.jpg")
    add("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    add("--epochs", type=int, default=2)
    add("--batch-size", type=int, default=16)
    add("--size", type=int, default=128, help="of the images that the network sees (default: %(default)s)")
    add("--workers", type=int, help="processes on the CPU (default: one per core)")
    add("--policy", choices=("mte", "wrr"), default="wrr")
    add("--checkpoint", metavar="FILE", help="written while it trains; read at the start if it is there")
    add("--save-every", type=int, default=10, metavar="N", help="batches (default: %(default)s)")
    add("--stop-after", type=int, metavar="N", help="batches, to try out how it goes on")
    return parser.parse_args()


if __name__ == "__main__":
    main()
