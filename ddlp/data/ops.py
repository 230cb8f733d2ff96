"""The operations of a recipe: frozen descriptions that check their parameters and declare their output."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ddlp.data import compiled
from ddlp.data.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, Shrink
from ddlp.data.operation import CHANNELS, Form, Images, Operation, Uniforms, fix_floats, is_size
from ddlp.errors import UsageError
from ddlp.types import ITEM_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "CenterCrop",
    "Cutout",
    "Decode",
    "Map",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Shrink",
]


class Decode(Operation, frozen=True):
    """Decode an image file, or take an image, and convert it to `mode`, "RGB" or "L"."""

    STAGE: ClassVar[int] = 0
    mode: str = "RGB"

    def __post_init__(self) -> None:
        if self.mode not in CHANNELS:
            raise UsageError(f"Decode: mode must be one of {', '.join(CHANNELS)}: {self.mode!r}")

    def output(self, form: Form) -> Form:
        if form.dtype != "uint8":
            raise UsageError(f"Decode works on image files and uint8 images, not on {form}")
        return Form(form.height, form.width, CHANNELS[self.mode], "uint8")


class Map(Operation, frozen=True):
    """Any Python `function` of one sample's (height, width, channel) array, after the geometry and before Normalize.

    It must return an array of the declared `shape` and `dtype`; None: those that it was given. It runs where Python of
    this process can run, and has no JSON form.
    """

    STAGE: ClassVar[int] = 2

    function: Callable[[Any], Any]
    shape: tuple[int, int, int] | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"Map: function must be callable: {self.function!r}")
        if self.shape is not None and not (len(self.shape) == 3 and all(map(is_size, self.shape))):
            raise UsageError(f"Map: shape must be (height, width, channel): {self.shape!r}")
        if self.dtype is not None and self.dtype not in ITEM_NBYTES:
            raise UsageError(f"Map: dtype must be one of {', '.join(ITEM_NBYTES)}: {self.dtype!r}")

    def output(self, form: Form) -> Form:
        height, width, channels = self.shape or (form.height, form.width, form.channels)
        return Form(height, width, channels, self.dtype or form.dtype)


class Normalize(Operation, frozen=True, omit_defaults=True):
    """(x / 255 - mean) / std of each channel, in float32; floating-point images are not divided by 255.

    `where` says who does it: "worker", "target" (uint8 crosses, a quarter of the bytes, and the loader normalises the
    whole batch on its target), or "auto": on the target when that is an accelerator. The values are the same, and so
    is the recipe's digest. It can only be the target's when nothing follows it and the pixels are uint8.
    """

    STAGE: ClassVar[int] = 3

    mean: tuple[float, ...]
    std: tuple[float, ...]
    where: str = "auto"

    def __post_init__(self) -> None:
        fix_floats(self, "mean", self.mean, None)
        fix_floats(self, "std", self.std, len(self.mean))
        if not all(std > 0 for std in self.std):
            raise UsageError(f"Normalize: std must be positive: {self.std}")
        if self.where not in ("auto", "worker", "target"):
            raise UsageError(f'Normalize: where must be "auto", "worker" or "target": {self.where!r}')

    def output(self, form: Form) -> Form:
        if len(self.mean) != form.channels:
            raise UsageError(f"Normalize has {len(self.mean)} means, which does not fit {form}")
        if form.dtype not in ("uint8", "float16", "float32", "float64"):
            raise UsageError(f"Normalize works on uint8 and floating-point images, not on {form}")
        return Form(form.height, form.width, form.channels, "float32")

    @property
    def table(self) -> NDArray[np.float32]:
        """The normalised value of each uint8, (channel, 256)."""
        return np.stack([_table(mean, std) for mean, std in zip(self.mean, self.std, strict=True)])

    def batch(self, images: Images, out: NDArray[np.float32]) -> None:
        """Normalise a batch into `out`, both (batch, channel, height, width)."""
        for channel in range(len(self.mean)):
            values, target = images[:, channel], out[:, channel]
            if values.dtype == np.uint8:
                np.take(_table(self.mean[channel], self.std[channel]), values, out=target, mode="clip")
            else:
                target[...] = values
                np.subtract(target, np.float32(self.mean[channel]), out=target)
                np.divide(target, np.float32(self.std[channel]), out=target)


class Cutout(Operation, frozen=True):
    """Set a random square of side `size` to zero, clipped at the edges (DeVries and Taylor 2017), after Normalize."""

    STAGE: ClassVar[int] = 4
    DRAWS: ClassVar[int] = 2

    size: int

    def __post_init__(self) -> None:
        if not is_size(self.size):
            raise UsageError(f"Cutout: size must be a number of pixels, 1 or more: {self.size!r}")

    def batch(self, images: Images, uniforms: Uniforms) -> None:
        """Cut a square out of every image of a batch, in place; its centre is uniform over the pixels."""
        corners = np.floor(uniforms * images.shape[2:]).astype(np.int64) - self.size // 2
        if compiled.loops is not None and images.flags.c_contiguous:
            compiled.loops.clear(images, images.shape, images.itemsize, corners, self.size)
            return
        starts, ends = np.maximum(corners, 0).tolist(), (corners + self.size).tolist()
        for image, (top, left), (bottom, right) in zip(images, starts, ends, strict=True):
            image[:, top:bottom, left:right] = 0


Standard: TypeAlias = (
    Decode | Shrink | RandomResizedCrop | Resize | CenterCrop | RandomCrop | RandomHorizontalFlip | Normalize | Cutout
)


@functools.lru_cache(maxsize=64)
def _table(mean: float, std: float) -> NDArray[np.float32]:
    """The normalised value of each uint8, rounded after each step as torch rounds it."""
    values = np.arange(256, dtype=np.float32) / np.float32(255)
    table: NDArray[np.float32] = (values - np.float32(mean)) / np.float32(std)
    return table
