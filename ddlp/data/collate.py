"""Samples of any structure -> one batch of the same structure, as torch's `default_collate` builds it.

Arrays and numbers become numpy arrays here and tensors when the batch is unpacked, so that no torch is needed where no
sample holds a tensor. Two differences are meant: a tuple becomes a tuple, not a list, and strings a list everywhere.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.data.python import Column, dtype_name
from ddlp.errors import SampleError
from ddlp.types import ITEM_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGE_NBYTES = 1 << 13  # of one sample's array: from here on a look at all of them costs less than a copy


def collate(values: Sequence[Any], ids: Sequence[int], where: str = "", *, defer: bool = False) -> Any:
    """The batch of `values`, those of samples `ids`; `where` is their place inside the sample, for messages.

    With `defer` large arrays become `Column`s, to be joined where they are packed; not in containers of other types
    than Python's own, whose code may look at what it is given.

    Raises:
        SampleError: a value cannot be batched, or differs in shape, type, length or keys from the first sample's.
    """
    first = values[0]
    if _is_tensor(first):
        return _tensors(values, ids, where, defer)
    if isinstance(first, (str, bytes)):
        return list(values)
    if isinstance(first, (np.ndarray, np.generic)):
        return _arrays(values, ids, where, defer)
    if isinstance(first, (int, float)):
        return _numbers(values, ids, where)
    defer = defer and type(first) in (tuple, list, dict)
    if isinstance(first, Mapping):
        return _mapping(values, ids, where, defer)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return _dataclass(values, ids, where)
    if isinstance(first, Sequence):
        return _sequence(values, ids, where, defer)
    raise _unbatchable(first, ids[0], where)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _arrays(values: Sequence[Any], ids: Sequence[int], where: str, defer: bool) -> NDArray[Any] | Column:
    if dtype_name(values[0].dtype) not in ITEM_NBYTES:
        raise _unbatchable(values[0], ids[0], where)
    if defer and values[0].nbytes >= _LARGE_NBYTES and _alike(values, np.ndarray, "dtype", "shape"):
        return Column(values)
    array = _stacked_alike(values)
    if array is None:
        _check_shapes(values, ids, where)
        array = np.stack(values)
    return array


def _stacked_alike(values: Sequence[Any]) -> NDArray[Any] | None:
    """np.stack for what samples mostly hold, in less time; None where the values are not that, or are not alike."""
    kinds = set(map(type, values))
    try:
        if kinds == {np.ndarray} and len(set(map(len, values))) == 1:
            return np.concatenate(values).reshape(len(values), *values[0].shape)
        if len(kinds) == 1 and issubclass(kinds.pop(), np.generic):
            return np.array(values)
    except (TypeError, ValueError):  # arrays without dimensions have no length, and others differ in later ones
        pass
    return None


def _tensors(values: Sequence[Any], ids: Sequence[int], where: str, defer: bool) -> Any:
    torch, first = sys.modules["torch"], values[0]
    large = defer and first.nbytes >= _LARGE_NBYTES and _plain(torch, first)
    if large and _alike(values, torch.Tensor, "dtype", "shape", "device", "layout", "requires_grad"):
        return Column(values)
    try:
        return torch.stack(values)
    except (RuntimeError, TypeError):
        _check_shapes(values, ids, where)
        raise


def _plain(torch: Any, tensor: Any) -> bool:
    """Whether numpy can have the tensor's bytes."""
    dense = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    return dense and str(tensor.dtype).removeprefix("torch.") in ITEM_NBYTES.keys() - {"bfloat16"}


def _alike(values: Sequence[Any], kind: type, *attributes: str) -> bool:
    """Whether all are exactly of type `kind` and have the same attributes."""
    return set(map(type, values)) == {kind} and len(set(map(attrgetter(*attributes), values))) == 1


def _check_shapes(values: Sequence[Any], ids: Sequence[int], where: str) -> None:
    shape = values[0].shape
    for value, id_ in zip(values, ids, strict=True):
        if getattr(value, "shape", None) != shape:
            found = tuple(getattr(value, "shape", ("no array",)))
            raise _different("shape", (ids[0], tuple(shape)), (id_, found), where)


def _numbers(values: Sequence[Any], ids: Sequence[int], where: str) -> NDArray[Any]:
    kinds = set(map(type, values))
    if not kinds <= {int, float, bool}:
        for value, id_ in zip(values, ids, strict=True):
            if not isinstance(value, (int, float)):
                raise _different("type", (ids[0], type(values[0]).__name__), (id_, type(value).__name__), where)
    try:
        return np.array(values, dtype=_number_dtype(values[0], kinds))
    except OverflowError as error:
        raise SampleError(f"{where or 'it'} holds an integer that does not fit in 64 bits", ids[0]) from error


def _number_dtype(first: int | float, kinds: set[type]) -> type[np.generic]:
    """torch's choice: float64 where the first is a float, float32 where a later one is."""
    if isinstance(first, float):
        return np.float64
    if any(issubclass(kind, float) for kind in kinds):
        return np.float32
    return np.bool_ if kinds == {bool} else np.int64


def _mapping(values: Sequence[Any], ids: Sequence[int], where: str, defer: bool) -> Any:
    first = values[0]
    keys = first.keys()
    for value, id_ in zip(values, ids, strict=True):
        if not (type(value) is type(first) or isinstance(value, Mapping)) or not keys <= value.keys():
            found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise _different("keys", (ids[0], sorted(map(str, first))), (id_, found), where)
    batch = {key: collate([value[key] for value in values], ids, f"{where}[{key!r}]", defer=defer) for key in first}
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


def _sequence(values: Sequence[Any], ids: Sequence[int], where: str, defer: bool) -> Any:
    first = values[0]
    if set(map(type, values)) != {type(first)} or len(set(map(len, values))) > 1:
        for value, id_ in zip(values, ids, strict=True):
            if not isinstance(value, Sequence) or len(value) != len(first):
                found = len(value) if isinstance(value, Sequence) else type(value).__name__
                raise _different("length", (ids[0], len(first)), (id_, found), where)
    columns = zip(*values, strict=True)
    batch = [collate(column, ids, f"{where}[{k}]", defer=defer) for k, column in enumerate(columns)]
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
