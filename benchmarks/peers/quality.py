"""How near a peer's pixels are to Pillow's, on a fixed list of crops."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import plain
from driver import Crop
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CROPS = 100


class Quality(NamedTuple):
    """Against the reference: the largest difference in levels; the signal-to-noise ratio of all and of the worst."""

    max_difference: int
    psnr_db: float
    worst_db: float

    def __str__(self) -> str:
        if self.max_difference == 0:
            return "identical"
        return f"{self.psnr_db:.1f} dB (worst {self.worst_db:.1f}), up to {self.max_difference} levels"


def chosen_crops(folder: Path) -> list[Crop]:
    """The crops of a set: of RGB JPEG files, the only ones that every peer takes, as the training recipe has them."""
    rng = random.Random(0)
    paths = sorted(folder.glob("*/*"))
    rng.shuffle(paths)
    crops: list[Crop] = []
    for path in paths:
        with Image.open(path) as image:
            if (image.format, image.mode) == ("JPEG", "RGB"):
                crops.append(Crop(str(path), *plain.random_box(*image.size, rng)))
        if len(crops) == CROPS:
            break
    return crops


def quality(pixels: NDArray[np.uint8], reference: NDArray[np.uint8]) -> Quality:
    """Of images (crop, height, width, 3)."""
    difference = pixels.astype(np.int16) - reference
    squared = (difference.astype(np.float64) ** 2).mean(axis=(1, 2, 3))
    return Quality(int(np.abs(difference).max()), _db(squared.mean()), _db(squared.max()))


def _db(mean_squared_error: float) -> float:
    return float(10 * np.log10(255**2 / max(mean_squared_error, 1e-9)))
