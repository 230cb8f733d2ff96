"""The decoded cache: what a user says of it, and samples whose pixels are kept."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import msgspec

from ddlp.data import decode, room
from ddlp.data.base import digest
from ddlp.data.geometry import Geometry, Shrink
from ddlp.data.image_rows import FileSamples, Samples
from ddlp.data.images import ImageFiles
from ddlp.data.operation import is_size
from ddlp.data.ops import Decode
from ddlp.data.pixel_file import FORMAT, PixelFile, Stamp
from ddlp.data.recipe import Recipe
from ddlp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class DecodedCache(msgspec.Struct, frozen=True):
    """Keep the decoded pixels of image files, so that from the second epoch on they are only cropped.

    folder        where they are kept for the next run, in one file for each data set, on a disk of this machine; ranks
                  with the same folder share it. None: in memory, until the loader is closed
    nbytes        bound on that file or memory; what does not fit is decoded each time. None: half of the memory that is
                  available when the loader is made, divided by the number of ranks; or half of the folder's disk
    longest_side  keep larger images resized so that their longer side has so many pixels. That changes what is trained
                  on, and so the recipe: it becomes one with `Shrink(longest_side)` behind `Decode()`

    Raises:
        UsageError: a number is out of range.
    """

    folder: str | os.PathLike[str] | None = None
    nbytes: int | None = None
    longest_side: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("nbytes", self.nbytes), ("longest_side", self.longest_side)):
            if value is not None and not is_size(value):
                raise UsageError(f"DecodedCache: {name} must be a whole number, at least 1, or None: {value!r}")

    def open(self, dataset: Any, recipe: Any, ranks: int = 1) -> tuple[Recipe, PixelFile]:
        """The recipe as it is with this cache, and the file for the pixels.

        Raises:
            UsageError: there are no image files to decode, or the folder cannot be used.
        """
        if not (isinstance(dataset, ImageFiles) and isinstance(recipe, Recipe) and recipe.decode):
            raise UsageError(
                "a decoded cache is for image files, such as an ImageFolder, and a recipe that begins with Decode():"
                f" leave `cache` out for {type(dataset).__name__} with {recipe!r:.100}"
            )
        first, *rest = recipe
        shrink = () if self.longest_side is None else (Shrink(self.longest_side),)
        recipe = Recipe((first, *shrink, *rest))
        kept = Recipe(tuple(itertools.takewhile(lambda op: isinstance(op, (Decode, Shrink)), recipe)))
        try:
            return recipe, PixelFile(*self._place(dataset, kept, ranks), len(dataset), kept)
        except OSError as error:
            place = "memory" if self.folder is None else f"folder {os.fspath(self.folder)!r}"
            raise UsageError(f"DecodedCache: pixels cannot be kept in {place}: {error.strerror}") from error

    def _place(self, files: ImageFiles, kept: Recipe, ranks: int) -> tuple[int, int]:
        """An open file, and the bound on its bytes."""
        if self.folder is None:
            return os.memfd_create("ddlp-decoded"), self.nbytes or room.memory_nbytes() // (2 * ranks)
        os.makedirs(self.folder, exist_ok=True)
        fd = os.open(os.path.join(self.folder, _name(files, kept)), os.O_RDWR | os.O_CREAT, 0o600)
        return fd, self.nbytes or (os.fstat(fd).st_size + room.disk_nbytes(self.folder)) // 2


class KeptSamples(Samples):
    """Image files and their labels, the pixels of which are kept in `file` as long as there is room."""

    python = False
    ahead = FileSamples.ahead

    def __init__(self, files: ImageFiles, file: PixelFile) -> None:
        self._files = files
        self._file = file

    def load(self, id_: int) -> tuple[bytes | NDArray[np.uint8], Sequence[Any]]:
        return self._image(id_), (self._files.labels[id_],)

    def path(self, id_: int) -> str:
        return self._files.path(id_)

    def will_need(self, id_: int) -> None:
        if not self._file.has(id_):
            self._files.will_need(id_)

    def _image(self, id_: int) -> bytes | NDArray[np.uint8]:
        stamp = Stamp.of(self._files.place(id_)[0])  # before it is read: what changes meanwhile is seen the next time
        pixels = self._file.get(id_, stamp)
        if pixels is not None:
            return pixels
        data = self._files.encoded(id_)
        if self._file.full:
            return data
        pixels = self._decoded(data)
        self._file.add(id_, stamp, pixels)
        return pixels

    def _decoded(self, data: bytes) -> NDArray[np.uint8]:
        recipe = self._file.kept
        assert recipe.decode is not None
        image = decode.converted(decode.open_image(data), recipe.decode.mode)
        view = decode.View(image.height, image.width)
        for op in recipe.of(Geometry):
            view = op.view(view, ())
        return decode.pixels_of(image, view)


def _name(files: ImageFiles, kept: Recipe) -> str:
    """One name for all that the pixels depend on but the files' contents, which each record's stamp stands for."""
    kernels = {name: version for name, version in decode.kernels().items() if name != "numpy"}
    data = msgspec.json.encode((FORMAT, files.describe(), kernels))
    return f"{digest(data, files.fingerprint.encode(), kept.to_json())}.pixels"
