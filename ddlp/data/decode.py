"""Encoded bytes and images -> pixels. The one module that knows Pillow's pixel functions.

Correct pixels are defined as what Pillow gives, one step after the other: decode all, convert, then the moves of a
`View`, where resizing uses the antialiased bilinear filter. Anything faster must give the same bytes.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from PIL import Image, features
from PIL import __version__ as pillow_version

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pixels: TypeAlias = "NDArray[Any]"  # (height, width, channel)


class Crop(msgspec.Struct, frozen=True, gc=False):
    """Keep the part at (left, top); what lies outside the image is zero."""

    left: int
    top: int
    width: int
    height: int

    def is_inside(self, height: int, width: int) -> bool:
        """Whether it keeps to an image of this size."""
        return 0 <= self.left <= width - self.width and 0 <= self.top <= height - self.height


class Resample(msgspec.Struct, frozen=True, gc=False):
    """Resize to (width, height)."""

    width: int
    height: int


class Mirror(msgspec.Struct, frozen=True, gc=False):
    """Swap left and right."""


class View(msgspec.Struct, frozen=True, gc=False):
    """Which pixels of an image are wanted, in numbers only, before any pixel is touched.

    (height, width) is the size that `moves`, one after the other, lead to; without moves that of the image.
    """

    height: int
    width: int
    moves: tuple[Crop | Resample | Mirror, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, self.width

    def cropped(self, top: int, left: int, height: int, width: int) -> View:
        """The part at (top, left), which may reach over the edges, into zeros."""
        if (top, left, height, width) == (0, 0, self.height, self.width):
            return self
        return View(height, width, (*self.moves, Crop(left, top, width, height)))

    def resized(self, height: int, width: int) -> View:
        """All of it, resized."""
        return View(height, width, (*self.moves, Resample(width, height)))

    def mirrored(self) -> View:
        """All of it, left and right swapped."""
        return View(self.height, self.width, (*self.moves, Mirror()))


def open_image(data: bytes) -> Image.Image:
    """An image whose size is known and whose pixels are not decoded yet. Raises OSError for bytes of no known form."""
    return Image.open(io.BytesIO(data))


def converted(image: Image.Image, mode: str) -> Image.Image:
    """The image, decoded, in `mode`; the image itself where it has that mode. Raises OSError for truncated data."""
    image.load()
    return image if image.mode == mode else image.convert(mode)


def pixels_of(image: Image.Image, view: View) -> Pixels:
    """The pixels of `view`, uint8 (height, width, channel), read-only."""
    for move in view.moves:
        image = _moved(image, move)
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def part_of_pixels(pixels: Pixels, view: View) -> Pixels:
    """The same of an image's decoded pixels. Where the view begins with a crop, only that part of them is read."""
    moves = view.moves
    if moves and isinstance(crop := moves[0], Crop) and crop.is_inside(*pixels.shape[:2]):
        pixels = pixels[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        moves = moves[1:]
    return pixels_of(image_of(pixels), View(view.height, view.width, moves))


def image_of(pixels: Pixels) -> Image.Image:
    """The image of uint8 pixels (height, width[, channel])."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels)


def _moved(image: Image.Image, move: Crop | Resample | Mirror) -> Image.Image:
    match move:
        case Crop(left, top, width, height):
            return image.crop((left, top, left + width, top + height))
        case Resample(width, height):
            return image.resize((width, height), Image.Resampling.BILINEAR)
        case Mirror():
            return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def kernels() -> dict[str, str]:
    """Versions of the libraries whose code decides what the pixels are."""
    libjpeg = features.version_feature("libjpeg_turbo") or features.version_codec("jpg") or "none"
    return {"pillow": pillow_version, "libjpeg_turbo": libjpeg, "numpy": np.__version__}
