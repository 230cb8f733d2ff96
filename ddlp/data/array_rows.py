"""Rows of array data sets: as they are, or a recipe on whole groups of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.data.geometry import Rearrangement
from ddlp.data.ops import Map
from ddlp.data.randomness import seed_generators
from ddlp.data.rows import Rows, cut_out, mapped, sample_error, write
from ddlp.data.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ddlp.data.operation import Form
    from ddlp.data.recipe import Recipe
    from ddlp.data.rows import Arrays, Check
    from ddlp.data.sampling import ListedPlan, Plan

_GROUP_NBYTES = 1 << 20  # of source rows: temporaries stay in the cache, and `check` is called often enough


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
        images = np.asarray(arrays[0])
        self._images = images.reshape(*images.shape[:3], -1)
        self._rest = RawRows(arrays[1:])
        self._recipe = recipe
        self._maps = recipe.of(Map)
        self._mapped = recipe.mapped(form)
        self._arrangement = recipe.numbered(Rearrangement)

    def fill(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: Arrays, check: Check) -> None:
        for group in _groups(len(ids), self._images):
            check()
            self._fill_images(plan, ids[group], out[0][group])
        self._rest.fill(plan, ids, out[1:], check)

    def _fill_images(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: NDArray[Any]) -> None:
        uniforms = self._recipe.uniforms(plan.seed, plan.epoch, ids)
        windows = Windows(len(ids), *self._images.shape[1:3])
        for k, op in self._arrangement:
            op.choose(windows, uniforms[k])
        scale = self._recipe.normalize
        if not self._maps and (scale is None or self._images.dtype == np.uint8):
            windows.cut(self._images, ids, out, scale)
        else:
            images = np.empty((len(ids), self._images.shape[3], windows.height, windows.width), self._images.dtype)
            windows.cut(self._images, ids, images)
            write(self._recipe, self._mapped_all(plan, ids, images), out)
        cut_out(self._recipe, uniforms, out)

    def _mapped_all(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], images: NDArray[Any]) -> NDArray[Any]:
        if not self._maps:
            return images
        return np.stack([self._map(image, plan, id_) for image, id_ in zip(images, ids.tolist(), strict=True)])

    def _map(self, image: NDArray[Any], plan: Plan | ListedPlan, id_: int) -> NDArray[Any]:
        seed_generators(plan.seed, plan.epoch, id_)
        try:
            return mapped(self._maps, image.transpose(1, 2, 0), self._mapped).transpose(2, 0, 1)
        except Exception as error:
            raise sample_error(error, id_, None) from error


def _groups(rows: int, array: NDArray[Any]) -> Iterator[slice]:
    """Cut `rows` rows of `array` into groups of about _GROUP_NBYTES."""
    length = max(1, _GROUP_NBYTES // max(1, array[:1].nbytes))
    return (slice(first, first + length) for first in range(0, rows, length))


def _take(array: NDArray[Any], ids: NDArray[np.int64], out: NDArray[Any]) -> None:
    if array.flags.c_contiguous and array.dtype == out.dtype:
        np.take(array, ids, axis=0, out=out, mode="clip")  # "raise" would copy through a buffer; the ids are checked
    else:
        out[...] = array[ids]
