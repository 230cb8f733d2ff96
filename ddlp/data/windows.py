"""Crops and flips of a whole batch of arrays: decided in numbers first, then every pixel is moved once.

`decode.View` is the same for one image. The pixels are moved by a compiled loop, or by numpy where that was not built
or the images do not lie in order; both give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ddlp.data import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddlp.data.ops import Normalize

    Offsets: TypeAlias = NDArray[np.int32] | int


class Windows:
    """Which part of its image each sample of a batch is: `height` by `width` pixels, mirrored or not.

    Sample i has the pixels of the image from row top[i] and column left[i] on that also lie in the rows from row_lo[i]
    to before row_hi[i] and in the columns likewise, and zeros in the place of others.
    """

    def __init__(self, samples: int, height: int, width: int) -> None:
        """All of each image, of (height, width)."""
        self.height, self.width = height, width
        self.numbers = np.zeros((7, samples), np.int32)  # as _arrays.c wants them
        self._top, self._left, self._mirrored, self._row_lo, self._row_hi, self._column_lo, self._column_hi = (
            self.numbers
        )
        self._row_hi[:], self._column_hi[:] = height, width

    def crop(self, top: Offsets, left: Offsets, height: int, width: int) -> None:
        """Keep the part at (top, left), which may reach over the edges, into zeros."""
        np.maximum(self._row_lo, self._top, out=self._row_lo)
        np.minimum(self._row_hi, self._top + self.height, out=self._row_hi)
        np.maximum(self._column_lo, self._left, out=self._column_lo)
        np.minimum(self._column_hi, self._left + self.width, out=self._column_hi)
        self._top += top
        self._left += np.where(self._mirrored, self.width - width - left, left)
        self.height, self.width = height, width

    def mirror(self, chosen: NDArray[np.bool_]) -> None:
        """Swap left and right of the samples that are `chosen`."""
        self._mirrored ^= chosen

    def cut(
        self, images: NDArray[Any], ids: NDArray[np.int64], out: NDArray[Any], scale: Normalize | None = None
    ) -> None:
        """Fill `out`, C-contiguous (sample, channel, height, width), with the parts of images[ids].

        `images` are (image, height, width, channel), of the dtype of `out`; or bytes, which `scale` normalises.
        """
        if compiled.loops is None or not (images.flags.c_contiguous and images.dtype.isnative):
            self._cut(images, ids, out, scale)
            return
        means = None if scale is None else np.array([scale.mean, scale.std], np.float32)
        shape, size = (*images.shape, images.itemsize), (self.height, self.width)
        compiled.loops.cut(images, shape, ids, self.numbers, size, means, out)

    def _cut(self, images: NDArray[Any], ids: NDArray[np.int64], out: NDArray[Any], scale: Normalize | None) -> None:
        """What `cut` does, in numpy."""
        parts = np.zeros(out.shape, images.dtype)
        for part, id_, window in zip(parts, ids.tolist(), self.numbers.T.tolist(), strict=True):
            top, left, mirrored, row_lo, row_hi, column_lo, column_hi = window
            y0, y1 = _inside(top, row_lo, row_hi, self.height)
            x0, x1 = _inside(left, column_lo, column_hi, self.width)
            pixels = images[id_, top + y0 : top + y1, left + x0 : left + x1]
            target = part[:, :, ::-1] if mirrored else part
            target[:, y0:y1, x0:x1] = pixels.transpose(2, 0, 1)
        if scale is None:
            out[...] = parts
        else:
            scale.batch(parts, out)


def _inside(first: int, lo: int, hi: int, extent: int) -> tuple[int, int]:
    """Which of the `extent` positions from `first` on lie in lo..hi, counted from `first`."""
    start = min(max(lo - first, 0), extent)
    return start, max(start, min(hi - first, extent))
