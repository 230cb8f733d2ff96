"""The standard recipes.

With `normalize=False` a recipe leaves its Normalize out: uint8 batches, a quarter of the bytes, for a training step
that normalises on the accelerator.
"""

from __future__ import annotations

from ddlp.data.ops import (
    CenterCrop,
    Cutout,
    Decode,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from ddlp.data.recipe import Recipe

_IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_CIFAR10 = Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def imagenet_train(size: int = 224, *, normalize: bool = True) -> Recipe:
    """Random resized crop, flip and normalisation: (3, size, size) float32 of image files."""
    return Recipe((Decode(), RandomResizedCrop(size), RandomHorizontalFlip(), *_normalized(normalize)))


def imagenet_eval(size: int = 224, resize: int = 256, *, normalize: bool = True) -> Recipe:
    """Shorter side to `resize`, central crop and normalisation: (3, size, size) float32 of image files."""
    return Recipe((Decode(), Resize(resize), CenterCrop(size), *_normalized(normalize)))


def cifar_train(cutout: int | None = None) -> Recipe:
    """Random 32 x 32 crop with 4 pixels of padding, flip, normalisation and, where given, cutout of that size."""
    crop = (RandomCrop(32, padding=4), RandomHorizontalFlip(), _CIFAR10)
    return Recipe(crop if cutout is None else (*crop, Cutout(cutout)))


def cifar_eval() -> Recipe:
    """Normalisation only: (3, height, width) float32."""
    return Recipe((_CIFAR10,))


def _normalized(normalize: bool) -> tuple[Normalize, ...]:
    return (_IMAGENET,) if normalize else ()
