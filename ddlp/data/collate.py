"""Samples of any structure -> one batch of the same structure, as torch's `default_collate` builds it.

Arrays and numbers become numpy arrays here and tensors when the batch is unpacked, so that no torch is needed where no
sample holds a tensor. Two differences are meant: a tuple becomes a tuple, not a list, and strings a list everywhere.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.errors import SampleError
from ddlp.types import ITEM_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


def collate(values: Sequence[Any], ids: Sequence[int], where: str = "") -> Any:
    """The batch of `values`, those of samples `ids`; `where` is their place inside the sample, for messages.

    Raises:
        SampleError: a value cannot be batched, or differs in shape, type, length or keys from the first sample's.
    """
    first = values[0]
    if _is_tensor(first):
        return _stacked(sys.modules["torch"].stack, values, ids, where)
    if isinstance(first, (str, bytes)):
        return list(values)
    if isinstance(first, (np.ndarray, np.generic)):
        return _arrays(values, ids, where)
    if isinstance(first, (int, float)):
        return _numbers(values, ids, where)
    if isinstance(first, Mapping):
        return _mapping(values, ids, where)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return _dataclass(values, ids, where)
    if isinstance(first, Sequence):
        return _sequence(values, ids, where)
    raise _unbatchable(first, ids[0], where)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _arrays(values: Sequence[Any], ids: Sequence[int], where: str) -> NDArray[Any]:
    if values[0].dtype.name not in ITEM_NBYTES:
        raise _unbatchable(values[0], ids[0], where)
    array: NDArray[Any] = _stacked(np.stack, values, ids, where)
    return array


def _stacked(stack: Callable[[list[Any]], Any], values: Sequence[Any], ids: Sequence[int], where: str) -> Any:
    shapes = [tuple(getattr(value, "shape", ("no array",))) for value in values]
    for id_, shape in zip(ids, shapes, strict=True):
        if shape != shapes[0]:
            raise _different("shape", (ids[0], shapes[0]), (id_, shape), where)
    return stack(list(values))


def _numbers(values: Sequence[Any], ids: Sequence[int], where: str) -> NDArray[Any]:
    for value, id_ in zip(values, ids, strict=True):
        if not isinstance(value, (int, float)):
            raise _different("type", (ids[0], type(values[0]).__name__), (id_, type(value).__name__), where)
    try:
        return np.array(values, dtype=_number_dtype(values))
    except OverflowError as error:
        raise SampleError(f"{where or 'it'} holds an integer that does not fit in 64 bits", ids[0]) from error


def _number_dtype(values: Sequence[int | float]) -> type[np.generic]:
    """torch's choice: float64 where the first is a float, float32 where a later one is."""
    if isinstance(values[0], float):
        return np.float64
    if any(isinstance(value, float) for value in values):
        return np.float32
    return np.bool_ if all(isinstance(value, bool) for value in values) else np.int64


def _mapping(values: Sequence[Any], ids: Sequence[int], where: str) -> Any:
    first = values[0]
    for value, id_ in zip(values, ids, strict=True):
        if not isinstance(value, Mapping) or not first.keys() <= value.keys():
            found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise _different("keys", (ids[0], sorted(map(str, first))), (id_, found), where)
    batch = {key: collate([value[key] for value in values], ids, f"{where}[{key!r}]") for key in first}
    return _like(first, batch)


def _like(first: Mapping[Any, Any], batch: dict[Any, Any]) -> Any:
    """`batch` in the type of `first` where that can be made, with what it carries besides its items."""
    try:
        if isinstance(first, MutableMapping):
            clone = copy.copy(first)
            clone.update(batch)
            return clone
        return type(first)(batch)  # type: ignore[call-arg]  # a Mapping's constructor is not part of its contract
    except TypeError:
        return batch


def _dataclass(values: Sequence[Any], ids: Sequence[int], where: str) -> Any:
    for value, id_ in zip(values, ids, strict=True):
        if type(value) is not type(values[0]):
            raise _different("type", (ids[0], type(values[0]).__name__), (id_, type(value).__name__), where)
    names = [field.name for field in dataclasses.fields(values[0]) if field.init]
    batch = {name: collate([getattr(value, name) for value in values], ids, f"{where}.{name}") for name in names}
    return dataclasses.replace(values[0], **batch)


def _sequence(values: Sequence[Any], ids: Sequence[int], where: str) -> Any:
    first = values[0]
    for value, id_ in zip(values, ids, strict=True):
        if not isinstance(value, Sequence) or len(value) != len(first):
            found = len(value) if isinstance(value, Sequence) else type(value).__name__
            raise _different("length", (ids[0], len(first)), (id_, found), where)
    columns = zip(*values, strict=True)
    batch = [collate(column, ids, f"{where}[{k}]") for k, column in enumerate(columns)]
    if hasattr(first, "_fields"):
        return type(first)(*batch)
    try:
        return type(first)(batch)
    except TypeError:
        return batch


def _different(what: str, first: tuple[int, object], other: tuple[int, object], where: str) -> SampleError:
    message = f"{what} {other[1]} where sample {first[0]} has {first[1]}: samples of one batch must agree"
    place = f" at {where}" if where else ""
    return SampleError(f"{message}{place}; make them equal in the data set or pass a collate_fn", other[0])


def _unbatchable(value: Any, id_: int, where: str) -> SampleError:
    kind = f"{type(value).__name__} of dtype {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
    place = f" at {where}" if where else ""
    return SampleError(
        f"cannot batch {kind}{place}: return arrays, tensors, numbers, strings, or tuples, lists and dicts of them;"
        " or pass a collate_fn, or a recipe for images",
        id_,
    )
