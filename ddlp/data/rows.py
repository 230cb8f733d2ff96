"""What all ways to fill the rows of a batch of fixed form have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ddlp.data.ops import Cutout
from ddlp.errors import DataError, SampleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ddlp.data.operation import Form, Uniforms
    from ddlp.data.ops import Map
    from ddlp.data.recipe import Recipe
    from ddlp.data.sampling import ListedPlan, Plan

    Arrays: TypeAlias = Sequence[NDArray[Any]]
    Check: TypeAlias = Callable[[], None]


class Rows(ABC):
    """Makes samples `ids` into the rows of `out`, one array per field, each as long as `ids`.

    ahead  how many samples `expect` should be told of before they are made; 0: that changes nothing
    """

    ahead: int = 0

    @abstractmethod
    def fill(self, plan: Plan | ListedPlan, ids: NDArray[np.int64], out: Arrays, check: Check) -> None:
        """Fill every row. Calls `check` between samples, or between small groups of them; it may raise.

        Raises:
            SampleError: a sample cannot be read or processed.
        """

    def expect(self, ids: Sequence[int]) -> None:  # noqa: B027  # nothing to do is the default
        """These samples will be made soon: have what they need read ahead. Never fails."""


def mapped(maps: list[Map], pixels: NDArray[Any], form: Form) -> NDArray[Any]:
    """What the functions make of one sample. Raises DataError where that is not of the form that was declared."""
    if maps:
        pixels = np.array(pixels, order="C")  # the user's own: writable, and in the order that is promised
    for op in maps:
        pixels = np.asarray(op.function(pixels))
    found, declared = (pixels.shape, pixels.dtype.name), ((form.height, form.width, form.channels), form.dtype)
    if found != declared:
        raise DataError(f"the image is {found[1]} {found[0]} where {declared[1]} {declared[0]} was declared")
    return pixels


def write(recipe: Recipe, images: NDArray[Any], out: NDArray[Any]) -> None:
    """The last change of values, straight into `out`; both (batch, channel, height, width)."""
    if recipe.normalize is not None:
        recipe.normalize.batch(images, out)
    else:
        out[...] = images


def cut_out(recipe: Recipe, uniforms: list[Uniforms], out: NDArray[Any]) -> None:
    for k, op in recipe.numbered(Cutout):
        op.batch(out, uniforms[k])


def sample_error(error: Exception, id_: int, path: str | None) -> SampleError:
    """The error of sample `id_` that `error` stands for."""
    if isinstance(error, SampleError):
        return SampleError(error.args[0], id_, path or error.path)
    message = str(error) if isinstance(error, (DataError, UsageError)) else f"{type(error).__name__}: {error}"
    return SampleError(message, id_, path)
