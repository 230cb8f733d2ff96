"""The form of the batches that a data set and a recipe make, known before the first one."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.data.arrays import ArrayDataset
from ddlp.data.images import ImageFiles
from ddlp.data.operation import Form
from ddlp.data.recipe import Recipe, check_pillow, form_of
from ddlp.data.rows import sample_error
from ddlp.errors import UsageError
from ddlp.types import ITEM_NBYTES, Field, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_arguments(dataset: Any, recipe: Any, collate_fn: Any) -> None:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"dataset must have __len__ and __getitem__: {dataset!r:.200}")
    if recipe is not None and not isinstance(recipe, Recipe):
        raise UsageError(f"recipe must be a Recipe, such as ddlp.recipes.imagenet_train(): {recipe!r:.200}")
    if recipe is not None and collate_fn is not None:
        raise UsageError("a recipe makes the whole batch: pass either a recipe or a collate_fn")
    if recipe is None and collate_fn is None and isinstance(dataset, ImageFiles):
        raise UsageError(
            f"{type(dataset).__name__} needs a recipe, for its images differ in size: pass"
            " recipe=ddlp.recipes.imagenet_train() or imagenet_eval(), or a collate_fn"
        )


def form_and_layout(dataset: Any, recipe: Recipe | None, collate_fn: Any) -> tuple[Form | None, Layout | None]:
    """The form of the images that the recipe works on, and the layout of batches."""
    if recipe is None:
        raw = isinstance(dataset, ArrayDataset) and collate_fn is None
        return None, Layout(_array_fields(dataset)) if raw else None
    if isinstance(dataset, ImageFiles):
        if recipe.decode is None:
            raise UsageError("a recipe for image files begins with Decode()")
        form = Form(None, None, 3, "uint8")
        rest: tuple[Field, ...] = (Field("label", "int64", ()),)
    elif isinstance(dataset, ArrayDataset):
        images = dataset.arrays[0]
        form, rest = form_of(images.shape[1:], images.dtype.name), _array_fields(dataset)[1:]
    else:
        form, rest = _probed(dataset)
    if not (isinstance(dataset, ArrayDataset) and recipe.on_arrays):
        check_pillow(form)
    return form, Layout((recipe.field(form), *rest))


def _array_fields(dataset: ArrayDataset) -> tuple[Field, ...]:
    return tuple(Field(f"array{k}", array.dtype.name, array.shape[1:]) for k, array in enumerate(dataset.arrays))


def _probed(dataset: Any) -> tuple[Form, tuple[Field, ...]]:
    """The form of the images and the other fields, of the first sample."""
    sample = _first(dataset)
    if not isinstance(sample, (tuple, list)) or not sample:
        raise UsageError(f"a recipe needs samples (image, label, ...), not {type(sample).__name__}")
    image, *rest = sample
    array = np.asarray(image)
    fields = []
    for k, value in enumerate(map(np.asarray, rest), start=1):
        if value.dtype.name not in ITEM_NBYTES:
            raise UsageError(f"field {k} of a sample is {value.dtype}: with a recipe all but the image are numbers")
        fields.append(Field("label" if k == 1 else f"field{k}", value.dtype.name, value.shape))
    return form_of(array.shape, array.dtype.name), tuple(fields)


def _first(dataset: Any) -> Any:
    if len(dataset) == 0:
        raise UsageError("the data set is empty, so a recipe cannot be checked against it")
    try:
        with _random_state_kept():
            return dataset[0]
    except Exception as error:
        raise sample_error(error, 0, None) from error


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """What runs inside draws random numbers without the caller's generators noticing."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch:
            torch.set_rng_state(states[2])
