"""Rows of image data sets: a recipe image by image, by the compiled kernel or by Pillow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from ddlp.data import decode
from ddlp.data.geometry import Geometry
from ddlp.data.images import ImageFiles
from ddlp.data.ops import Map
from ddlp.data.pixels import kernel, part_of
from ddlp.data.randomness import seed_generators
from ddlp.data.rows import Rows, cut_out, mapped, sample_error, write
from ddlp.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddlp.data.decode import Pixels
    from ddlp.data.operation import Form
    from ddlp.data.pixels import Part
    from ddlp.data.recipe import Recipe
    from ddlp.data.rows import Arrays, Check
    from ddlp.data.sampling import ListedPlan, Plan


class Samples(ABC):
    """Where ImageRows gets its samples from, one at a time.

    python  code of the user makes them
    ahead   how many samples before it is loaded one should be announced, by `will_need`; 0: that changes nothing
    """

    python: ClassVar[bool] = True
    ahead: ClassVar[int] = 0

    @abstractmethod
    def load(self, id_: int) -> tuple[bytes | Pixels | Image.Image, Sequence[Any]]:
        """The image, as a file's bytes or decoded, and the values of the other fields. Exceptions are the sample's.

        Pixels (height, width, channel) are C-contiguous and in the mode that the recipe decodes to.
        """

    def path(self, id_: int) -> str | None:
        """The sample's file, where it has one."""
        return None

    def will_need(self, id_: int) -> None:  # noqa: B027  # nothing to do is the default
        """The sample will be loaded soon. Never fails."""


class FileSamples(Samples):
    """Image files and their labels."""

    python = False
    ahead = 16  # some megabytes: a disk has enough to do, and little is read in vain when a batch is given up

    def __init__(self, files: ImageFiles) -> None:
        self._files = files

    def load(self, id_: int) -> tuple[bytes, Sequence[Any]]:
        return self._files.encoded(id_), (self._files.labels[id_],)

    def path(self, id_: int) -> str:
        return self._files.path(id_)

    def will_need(self, id_: int) -> None:
        self._files.will_need(id_)


class DatasetSamples(Samples):
    """Samples (image, value, ...) of any data set; the image is one of Pillow's or an array."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def load(self, id_: int) -> tuple[Image.Image, Sequence[Any]]:
        image, *rest = self._dataset[id_]
        return image if isinstance(image, Image.Image) else decode.image_of(np.asarray(image)), rest


def samples_of(dataset: Any) -> Samples:
    return FileSamples(dataset) if isinstance(dataset, ImageFiles) else DatasetSamples(dataset)


class ImageRows(Rows):
    """A recipe on images, one after the other: by the compiled kernel what it can do, the rest by Pillow."""

    def __init__(self, recipe: Recipe, samples: Samples, form: Form) -> None:
        self._recipe = recipe
        self._samples = samples
        self.ahead = samples.ahead
        self._mapped = recipe.mapped(form)
        self._decode = recipe.decode
        self._geometry = recipe.numbered(Geometry)
        self._maps = recipe.of(Map)
        self._table = None if recipe.normalize is None else recipe.normalize.table
        plain = self._decode is not None and self._decode.mode == "RGB" and not self._maps
        self._kernel = kernel() if plain else None

    def fill(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: Arrays, check: Check) -> None:
        uniforms = self._recipe.uniforms(plan.seed, plan.epoch, ids)
        numbers = [array.tolist() for array in uniforms]  # Python floats are the faster ones for one sample
        listed = ids.tolist()
        for row, id_ in enumerate(listed):
            check()
            self.expect(listed[row + self.ahead : row + self.ahead + 1])
            try:
                self._fill_row(plan, id_, [array[row] for array in numbers], [array[row : row + 1] for array in out])
            except Exception as error:
                raise sample_error(error, id_, self._samples.path(id_)) from error
        cut_out(self._recipe, uniforms, out[0])

    def expect(self, ids: Sequence[int]) -> None:
        for id_ in ids:
            self._samples.will_need(id_)

    def _fill_row(self, plan: Plan | ListedPlan, id_: int, uniforms: list[list[float]], out: Arrays) -> None:
        if self._maps or self._samples.python:
            seed_generators(plan.seed, plan.epoch, id_)
        source, rest = self._samples.load(id_)
        if not self._compiled(source, uniforms, out[0][0]):
            pixels = self._pixels(source, uniforms)
            write(self._recipe, mapped(self._maps, pixels, self._mapped).transpose(2, 0, 1)[None], out[0])
        for array, value in zip(out[1:], rest, strict=True):
            _put(array, np.asarray(value))

    def _compiled(self, source: bytes | Pixels | Image.Image, uniforms: list[list[float]], out: NDArray[Any]) -> bool:
        """Whether the kernel could fill `out`."""
        if self._kernel is None or isinstance(source, Image.Image):
            return False
        part = self._part(self._kernel.size_of_jpeg(source) if isinstance(source, bytes) else source.shape, uniforms)
        if part is None:
            return False
        if isinstance(source, bytes):
            return self._kernel.fill_from_jpeg(source, part, self._table, out)
        self._kernel.fill_from_pixels(source, part, self._table, out)
        return True

    def _part(self, size: tuple[int, ...] | None, uniforms: list[list[float]]) -> Part | None:
        """What the kernel is asked for, of an image of size (height, width, ...); None: it cannot do that."""
        if size is None:
            return None
        height, width = size[:2]
        return part_of(self._view(height, width, uniforms), height, width)

    def _pixels(self, source: bytes | Pixels | Image.Image, uniforms: list[list[float]]) -> NDArray[Any]:
        if isinstance(source, np.ndarray):
            height, width, _ = source.shape
            return decode.part_of_pixels(source, self._view(height, width, uniforms))
        image = decode.open_image(source) if isinstance(source, bytes) else source
        if self._decode is not None:
            image = decode.converted(image, self._decode.mode)
        return decode.pixels_of(image, self._view(image.height, image.width, uniforms))

    def _view(self, height: int, width: int, uniforms: list[list[float]]) -> decode.View:
        view = decode.View(height, width)
        for k, op in self._geometry:
            view = op.view(view, uniforms[k])
        return view


def _put(row: NDArray[Any], value: NDArray[Any]) -> None:
    """Store a value that is no image. Raises DataError where it is not of the form of the first sample's."""
    if value.shape != row.shape[1:] or not np.can_cast(value.dtype, row.dtype, "same_kind"):
        raise DataError(f"a field is {value.dtype} {value.shape} where sample 0 has {row.dtype} {row.shape[1:]}")
    row[0] = value
