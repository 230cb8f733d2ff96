"""Ways to fill the rows of a batch of fixed form: raw arrays, a recipe on whole groups, a recipe image by image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from PIL import Image

from ddlp.data import decode
from ddlp.data.base import read
from ddlp.data.folder import ImageFolder
from ddlp.data.geometry import Geometry, Rearrangement
from ddlp.data.ops import Cutout, Map
from ddlp.data.pixels import kernel, part_of
from ddlp.data.python import seed_generators
from ddlp.errors import DataError, SampleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddlp.data.operation import Form, Uniforms
    from ddlp.data.recipe import Recipe
    from ddlp.data.sampling import ListedPlan, Plan

    Arrays: TypeAlias = Sequence[NDArray[Any]]
    Check: TypeAlias = Callable[[], None]

_GROUP_NBYTES = 1 << 20  # of source rows: temporaries stay in the cache, and `check` is called often enough


class Rows(ABC):
    """Makes samples `ids` into the rows of `out`, one array per field, each as long as `ids`."""

    @abstractmethod
    def fill(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: Arrays, check: Check) -> None:
        """Fill every row. Calls `check` between samples, or between small groups of them; it may raise.

        Raises:
            SampleError: a sample cannot be read or processed.
        """


class RawRows(Rows):
    """The rows of arrays as they are."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = [np.asarray(array) for array in arrays]

    def fill(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: Arrays, check: Check) -> None:
        for array, target in zip(self._arrays, out, strict=True):
            for group in _groups(len(ids), array):
                check()
                _take(array, ids[group], target[group])


class ArrayRows(Rows):
    """A recipe on arrays, the first of which holds (height, width[, channel]) images; whole groups of rows at once."""

    def __init__(self, recipe: Recipe, arrays: Arrays, form: Form) -> None:
        self._images = np.asarray(arrays[0])
        self._rest = RawRows(arrays[1:])
        self._recipe = recipe
        self._mapped = recipe.mapped(form)

    def fill(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: Arrays, check: Check) -> None:
        for group in _groups(len(ids), self._images):
            check()
            self._fill_images(plan, ids[group], out[0][group])
        self._rest.fill(plan, ids, out[1:], check)

    def _fill_images(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: NDArray[Any]) -> None:
        uniforms = self._recipe.uniforms(plan.seed, plan.epoch, ids)
        images = self._images[ids]
        images = images.reshape(*images.shape[:3], -1).transpose(0, 3, 1, 2)
        for k, op in self._recipe.numbered(Rearrangement):
            images = op.batch(images, uniforms[k])
        if maps := self._recipe.of(Map):
            numbered = zip(images, ids.tolist(), strict=True)
            images = np.stack([self._map(maps, image, plan, id_) for image, id_ in numbered])
        _write(self._recipe, images, out)
        _cut_out(self._recipe, uniforms, out)

    def _map(self, maps: list[Map], image: NDArray[Any], plan: Plan | ListedPlan, id_: int) -> NDArray[Any]:
        seed_generators(plan.seed, plan.epoch, id_)
        try:
            return _mapped(maps, image.transpose(1, 2, 0), self._mapped).transpose(2, 0, 1)
        except Exception as error:
            raise sample_error(error, id_, None) from error


class Samples(ABC):
    """Where ImageRows gets its samples from, one at a time; `python`: code of the user makes them."""

    python: ClassVar[bool] = True

    @abstractmethod
    def load(self, id_: int) -> tuple[bytes | Image.Image, Sequence[Any]]:
        """The image, as a file's bytes or decoded, and the values of the other fields. Exceptions are the sample's."""

    def path(self, id_: int) -> str | None:
        """The sample's file, where it has one."""
        return None


class FolderSamples(Samples):
    """Image files and their labels."""

    python = False

    def __init__(self, folder: ImageFolder) -> None:
        self._folder = folder

    def load(self, id_: int) -> tuple[bytes, Sequence[Any]]:
        return read(self.path(id_)), (self._folder.labels[id_],)

    def path(self, id_: int) -> str:
        return self._folder.path(id_)


class DatasetSamples(Samples):
    """Samples (image, value, ...) of any data set; the image is one of Pillow's or an array."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def load(self, id_: int) -> tuple[Image.Image, Sequence[Any]]:
        image, *rest = self._dataset[id_]
        return image if isinstance(image, Image.Image) else _pillow(image), rest


def samples_of(dataset: Any) -> Samples:
    return FolderSamples(dataset) if isinstance(dataset, ImageFolder) else DatasetSamples(dataset)


class ImageRows(Rows):
    """A recipe on images, one after the other: by the compiled kernel what it can do, the rest by Pillow."""

    def __init__(self, recipe: Recipe, samples: Samples, form: Form) -> None:
        self._recipe = recipe
        self._samples = samples
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
        for row, id_ in enumerate(ids.tolist()):
            check()
            try:
                self._fill_row(plan, id_, [array[row] for array in numbers], [array[row : row + 1] for array in out])
            except Exception as error:
                raise sample_error(error, id_, self._samples.path(id_)) from error
        _cut_out(self._recipe, uniforms, out[0])

    def _fill_row(self, plan: Plan | ListedPlan, id_: int, uniforms: list[list[float]], out: Arrays) -> None:
        if self._maps or self._samples.python:
            seed_generators(plan.seed, plan.epoch, id_)
        source, rest = self._samples.load(id_)
        if not (isinstance(source, bytes) and self._compiled(source, uniforms, out[0][0])):
            pixels = self._pixels(decode.open_image(source) if isinstance(source, bytes) else source, uniforms)
            _write(self._recipe, _mapped(self._maps, pixels, self._mapped).transpose(2, 0, 1)[None], out[0])
        for array, value in zip(out[1:], rest, strict=True):
            _put(array, np.asarray(value))

    def _compiled(self, data: bytes, uniforms: list[list[float]], out: NDArray[Any]) -> bool:
        """Whether the kernel could fill `out`."""
        size = None if self._kernel is None else self._kernel.size_of_jpeg(data)
        if self._kernel is None or size is None:
            return False
        part = part_of(self._view(*size, uniforms), *size)
        return part is not None and self._kernel.fill_from_jpeg(data, part, self._table, out)

    def _pixels(self, image: Image.Image, uniforms: list[list[float]]) -> NDArray[Any]:
        if self._decode is not None:
            image = decode.converted(image, self._decode.mode)
        return decode.pixels_of(image, self._view(image.height, image.width, uniforms))

    def _view(self, height: int, width: int, uniforms: list[list[float]]) -> decode.View:
        view = decode.View(height, width)
        for k, op in self._geometry:
            view = op.view(view, uniforms[k])
        return view


def _groups(rows: int, array: NDArray[Any]) -> Iterator[slice]:
    """Cut `rows` rows of `array` into groups of about _GROUP_NBYTES."""
    length = max(1, _GROUP_NBYTES // max(1, array[:1].nbytes))
    return (slice(first, first + length) for first in range(0, rows, length))


def _take(array: NDArray[Any], ids: NDArray[np.int64], out: NDArray[Any]) -> None:
    if array.flags.c_contiguous and array.dtype == out.dtype:
        np.take(array, ids, axis=0, out=out, mode="clip")  # "raise" would copy through a buffer; the ids are checked
    else:
        out[...] = array[ids]


def _mapped(maps: list[Map], pixels: NDArray[Any], form: Form) -> NDArray[Any]:
    """What the functions make of one sample. Raises DataError where that is not of the form that was declared."""
    if maps:
        pixels = np.array(pixels, order="C")  # the user's own: writable, and in the order that is promised
    for op in maps:
        pixels = np.asarray(op.function(pixels))
    found, declared = (pixels.shape, pixels.dtype.name), ((form.height, form.width, form.channels), form.dtype)
    if found != declared:
        raise DataError(f"the image is {found[1]} {found[0]} where {declared[1]} {declared[0]} was declared")
    return pixels


def _write(recipe: Recipe, images: NDArray[Any], out: NDArray[Any]) -> None:
    """The last change of values, straight into `out`; both (batch, channel, height, width)."""
    if recipe.normalize is not None:
        recipe.normalize.batch(images, out)
    else:
        out[...] = images


def _put(row: NDArray[Any], value: NDArray[Any]) -> None:
    """Store a value that is no image. Raises DataError where it is not of the form of the first sample's."""
    if value.shape != row.shape[1:] or not np.can_cast(value.dtype, row.dtype, "same_kind"):
        raise DataError(f"a field is {value.dtype} {value.shape} where sample 0 has {row.dtype} {row.shape[1:]}")
    row[0] = value


def _cut_out(recipe: Recipe, uniforms: list[Uniforms], out: NDArray[Any]) -> None:
    for k, op in recipe.numbered(Cutout):
        op.batch(out, uniforms[k])


def sample_error(error: Exception, id_: int, path: str | None) -> SampleError:
    """The error of sample `id_` that `error` stands for."""
    if isinstance(error, SampleError):
        return SampleError(error.args[0], id_, path or error.path)
    message = str(error) if isinstance(error, (DataError, UsageError)) else f"{type(error).__name__}: {error}"
    return SampleError(message, id_, path)


def _pillow(image: Any) -> Image.Image:
    array = np.asarray(image)
    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)
