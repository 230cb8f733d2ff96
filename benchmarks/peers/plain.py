"""The ImageNet training recipe in plain Pillow and torch, step by step as torchvision does it.

It is the baseline's, and that of every peer that brings no image operations of its own, so that these differ in
nothing but the loader. Its pixels are the reference for all others.
"""

from __future__ import annotations

import io
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
from driver import MEAN, RATIO, SCALE, SIZE, STD
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from driver import Crop
    from numpy.typing import NDArray

Box = tuple[int, int, int, int]  # left, top, width, height


def random_box(width: int, height: int, rng: Any = random) -> Box:
    """The part that RandomResizedCrop takes: ten tries, then the largest in the middle whose ratio is allowed."""
    for _ in range(10):
        area = width * height * rng.uniform(*SCALE)
        ratio = math.exp(rng.uniform(*map(math.log, RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def augmented(data: bytes) -> Image.Image:
    """A file's image, decoded, randomly cropped, resized to SIZE, and perhaps mirrored."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return _part(image, random_box(*image.size), mirror=random.random() < 0.5)


def to_tensor(image: Image.Image, float32: bool) -> torch.Tensor:
    """(3, SIZE, SIZE), normalised float32 or uint8."""
    import torch

    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    if not float32:
        return pixels
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)


def normalized(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """A whole batch, (image, SIZE, SIZE, 3), as normalised float32 (image, 3, SIZE, SIZE)."""
    import torch

    scale = 1 / (255 * torch.tensor(STD)[:, None, None])
    bias = -torch.tensor(MEAN)[:, None, None] / torch.tensor(STD)[:, None, None]
    planar = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    return planar.to(torch.float32, memory_format=torch.contiguous_format).mul_(scale).add_(bias)


def crops(wanted: Sequence[Crop]) -> NDArray[np.uint8]:
    """The reference: what Pillow makes of these parts, (crop, SIZE, SIZE, 3)."""
    images = (_part(Image.open(crop.path).convert("RGB"), crop[1:5], mirror=crop.mirror) for crop in wanted)
    return np.stack([np.asarray(image) for image in images])


def _part(image: Image.Image, box: Box, *, mirror: bool) -> Image.Image:
    left, top, width, height = box
    part = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror else part
