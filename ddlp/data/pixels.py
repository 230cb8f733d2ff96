"""The compiled pixel path, where it is there and proven; decode.py is the definition that it must equal.

`_pixels` is an optional extension. It decodes with the very libjpeg that Pillow uses, and only the rows and columns
that a crop needs; it resamples as Pillow does, bit for bit. Which of Pillow's rules hold is not taken from a version
number but tried once per process, on a few small images: what differs is not used.
"""

from __future__ import annotations

import functools
import io
import itertools
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import PIL
from PIL import Image

from ddlp.data import decode
from ddlp.data.decode import Crop, Mirror, Resample, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MOST_PIXELS = 1 << 26  # larger files are left to Pillow, which has a rule for decompression bombs


class Kernel(NamedTuple):
    """The extension, and which of Pillow's rules it follows: whether it may take the vertical pass first."""

    module: Any
    vertical_first: bool
    decodes: bool

    def size_of_jpeg(self, data: bytes) -> tuple[int, int] | None:
        """(height, width) of a JPEG file that `fill_from_jpeg` may be asked for; None: leave it to Pillow."""
        size: tuple[int, int] | None = self.module.size_of_jpeg(data) if self.decodes else None
        return None if size is None or size[0] * size[1] > _MOST_PIXELS else size[::-1]

    def fill_from_jpeg(self, data: bytes, part: Part, table: NDArray[np.float32] | None, out: NDArray[Any]) -> bool:
        """Fill `out`, (3, height, width), with the part, each value looked up in `table` (3, 256).

        False: the file is unusual or damaged, `out` is garbage, and Pillow decides what becomes of it.
        """
        done: bool = self.module.from_jpeg(data, *part, self.vertical_first, table, out)
        return done

    def fill_from_pixels(
        self, pixels: NDArray[np.uint8], part: Part, table: NDArray[np.float32] | None, out: NDArray[Any]
    ) -> None:
        """The same of C-contiguous pixels (height, width, 3)."""
        self.module.from_pixels(pixels, *part, self.vertical_first, table, out, pixels.shape[1])


class Part(NamedTuple):
    """A view in the kernel's terms: crop `box`, resize to `size`, keep `window`, then perhaps mirror.

    box (left, top, width, height), size (width, height), window (left, top, right, bottom).
    """

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    window: tuple[int, int, int, int]
    mirror: bool


def part_of(view: View, height: int, width: int) -> Part | None:
    """The view of an image of (height, width), or None where it takes other moves than one resize between crops."""
    box, size, window, mirror = (0, 0, width, height), None, None, False
    for move in view.moves:
        match move:
            case Crop() if not mirror and _inside(move, size or box[2:]):
                if size is None:
                    box = (box[0] + move.left, box[1] + move.top, move.width, move.height)
                elif window is None:
                    window = (move.left, move.top, move.left + move.width, move.top + move.height)
                else:
                    return None
            case Resample() if size is None and not mirror:
                size = (move.width, move.height)
            case Mirror():
                mirror = not mirror
            case _:
                return None
    size = size or box[2:]
    return Part(box, size, window or (0, 0, *size), mirror)


def _inside(crop: Crop, size: tuple[int, int]) -> bool:
    right, bottom = crop.left + crop.width, crop.top + crop.height
    return crop.left >= 0 and crop.top >= 0 and right <= size[0] and bottom <= size[1]


@functools.cache
def kernel() -> Kernel | None:
    """The kernel as far as it gives Pillow's bytes here, or None where it is not built or does not."""
    try:
        module = import_module("ddlp.data._pixels")
    except ImportError:
        return None
    for vertical_first in (True, False):
        found = Kernel(module, vertical_first, decodes=False)
        if _resamples_like_pillow(found):
            decoding = found._replace(decodes=any(map(module.use_libjpeg, _libraries())))
            return decoding if decoding.decodes and _decodes_like_pillow(decoding) else found
    return None


def _libraries() -> Iterator[str]:
    """Where Pillow's libjpeg may be: in its wheel, or the system's."""
    bundled = Path(PIL.__path__[0]).parent / "pillow.libs"
    yield from map(str, sorted(bundled.glob("libjpeg*")))
    yield "libjpeg.so.62"


def _trials() -> Iterator[tuple[NDArray[np.uint8], View]]:
    """Images and views of which one at least would come out differently under another rule."""
    rng = np.random.default_rng(0)
    for (height, width), (to_height, to_width) in itertools.product(((97, 31), (40, 90)), ((17, 23), (64, 48))):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        yield pixels, View(height, width).cropped(1, 2, height - 3, width - 5).resized(to_height, to_width).mirrored()


def _resamples_like_pillow(found: Kernel) -> bool:
    return all(_same(found, pixels, view, None) for pixels, view in _trials())


def _decodes_like_pillow(found: Kernel) -> bool:
    for quality, (pixels, view) in enumerate(_trials(), start=90):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=quality % 3)
        if not _same(found, pixels, view, file.getvalue()):
            return False
    return True


def _same(found: Kernel, pixels: NDArray[np.uint8], view: View, data: bytes | None) -> bool:
    part = part_of(view, *pixels.shape[:2])
    assert part is not None
    out = np.empty((3, view.height, view.width), np.uint8)
    if data is None:
        image = Image.fromarray(pixels)
        found.fill_from_pixels(pixels, part, None, out)
    else:
        image = decode.converted(decode.open_image(data), "RGB")
        if not found.fill_from_jpeg(data, part, None, out):
            return False
    return np.array_equal(out, decode.pixels_of(image, view).transpose(2, 0, 1))
