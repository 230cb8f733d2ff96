"""CIFAR-10's training recipe on arrays in memory: ddlp against DataLoader with a transform per sample.

    python benchmarks/cifar.py [--images 50000] [--batch-size 128] [--rounds 5]

Random 32 x 32 crop of the padded image, flip, normalisation. DataLoader has two workers, which is its best on two
cores, and does what torchvision does, step by step with Pillow and torch. Whole epochs of the whole loader, from asking
for the first batch to the end; both keep their workers between epochs, and take turns.
"""

from __future__ import annotations

import argparse
import random
import statistics

import numpy as np
import torch
from common import epoch_s, median_of, ratios, take_turns, verdict
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

import ddlp

GOAL = 20.0  # times as fast as DataLoader
WORKERS = 2
MEAN = torch.tensor((0.4914, 0.4822, 0.4465))[:, None, None]
STD = torch.tensor((0.2470, 0.2435, 0.2616))[:, None, None]


class PerSample(Dataset[tuple[torch.Tensor, int]]):
    """The images with the usual transforms, one by one."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self._images[index]), 4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div_(255)
        return pixels.sub_(MEAN).div_(STD), int(self._labels[index])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (args.images, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, args.images)
    plain = DataLoader(
        PerSample(images, labels), args.batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    with ddlp.Loader(
        ddlp.ArrayDataset(images, labels),
        ddlp.recipes.cifar_train(),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=WORKERS,
    ) as loader:
        seconds = take_turns(args.rounds, {"DataLoader": lambda: epoch_s(plain), "ddlp": lambda: epoch_s(loader)})
    for name, taken in seconds.items():
        print(f"{name}: {args.images / statistics.median(taken):,.0f} images/s")
    found = ratios(seconds["DataLoader"], seconds["ddlp"])
    print(f"ddlp is {median_of(found)} as fast")
    return verdict(f"at least {GOAL:.0f} times as fast as DataLoader", statistics.median(found) >= GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
