"""What all data sets of encoded images have in common, wherever the bytes lie."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from typing import TYPE_CHECKING

from ddlp.data import decode
from ddlp.data.base import Source
from ddlp.errors import SampleError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFiles(Source):
    """Encoded images, each with a label; a sample is (RGB image, label).

    labels  of all samples, int64
    """

    labels: NDArray[np.int64]

    @abstractmethod
    def path(self, id_: int) -> str:
        """The name of a sample's file in messages."""

    @abstractmethod
    def place(self, id_: int) -> tuple[str, int, int]:
        """Where the image lies: file, offset, and number of bytes, 0 for all that follow."""

    @abstractmethod
    def encoded(self, id_: int) -> bytes:
        """The bytes of the image. Raises OSError or DataError."""

    def will_need(self, id_: int) -> None:
        """Have the system read the image ahead, in the background. Never fails: it is only a hint."""
        # A thread that reads would hide the time of opening a file too, and take turns with the decoder for it; files
        # that stay open until they are read would have to be closed when a batch is given up. A hint leaves nothing.
        path, offset, nbytes = self.place(id_)
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(fd)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        id_ = self._checked(index)
        try:
            image = decode.converted(decode.open_image(self.encoded(id_)), "RGB")
        except Exception as error:
            raise SampleError(f"{type(error).__name__}: {error}", id_, self.path(id_)) from error
        return image, int(self.labels[id_])
