"""Rows of array data sets: as they are, or a recipe on whole groups of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.data.geometry import Rearrangement
from ddlp.data.ops import Map
from ddlp.data.python import seed_generators
from ddlp.data.rows import Rows, cut_out, mapped, sample_error, write

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
        write(self._recipe, images, out)
        cut_out(self._recipe, uniforms, out)

    def _map(self, maps: list[Map], image: NDArray[Any], plan: Plan | ListedPlan, id_: int) -> NDArray[Any]:
        seed_generators(plan.seed, plan.epoch, id_)
        try:
            return mapped(maps, image.transpose(1, 2, 0), self._mapped).transpose(2, 0, 1)
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
