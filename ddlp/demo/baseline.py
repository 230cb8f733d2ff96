"""What ddlp is compared with: PyTorch's DataLoader and the usual transforms, written plainly.

The transforms do what torchvision's do, step by step, with Pillow and torch, so that nobody needs torchvision for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.data.folder import ImageFolder

_SCALE, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
_MEAN = torch.tensor((0.485, 0.456, 0.406))[:, None, None]
_STD = torch.tensor((0.229, 0.224, 0.225))[:, None, None]


class PlainImageNet(Dataset[tuple[torch.Tensor, int]]):
    """An image folder with ImageNet's training transforms: (3, size, size) float32 and the label."""

    def __init__(self, folder: ImageFolder, size: int = 224) -> None:
        self._paths = [folder.path(id_) for id_ in range(len(folder))]
        self._labels = folder.labels.tolist()
        self._size = size

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self._paths[index]) as file:
            image = file.convert("RGB")
        image = _random_resized_crop(image, self._size)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return _normalize(_to_tensor(image)), self._labels[index]


def plain_loader(
    folder: ImageFolder, ids: Sequence[int], batch_size: int, workers: int
) -> DataLoader[tuple[torch.Tensor, int]]:
    """DataLoader of the samples `ids` in this order; workers stay for the next epoch, all else is as by default."""
    return DataLoader(PlainImageNet(folder), batch_size, sampler=ids, num_workers=workers, persistent_workers=True)


def _random_resized_crop(image: Image.Image, size: int) -> Image.Image:
    left, top, width, height = random_box(*image.size)
    return image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a part with random area and aspect ratio; the middle where none fits."""
    for _ in range(_TRIES):
        area = width * height * _uniform(*_SCALE)
        ratio = math.exp(_uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return _below(width - w + 1), _below(height - h + 1), w, h
    w, h = min(width, round(height * _RATIO[1])), min(height, round(width / _RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def _uniform(low: float, high: float) -> float:
    return float(torch.empty(1).uniform_(low, high))


def _below(limit: int) -> int:
    return int(torch.randint(0, limit, (1,)))


def _to_tensor(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return pixels.to(torch.float32).div(255)


def _normalize(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.sub_(_MEAN).div_(_STD)
