"""Batches that arbitrary Python makes: how they cross a process boundary, and what would not pickle.

A batch is packed as its arrays and a skeleton, the pickled rest with a reference in the place of each array, so array
bytes are never pickled.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.types import ITEM_NBYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_TENSOR, _NUMPY, _BFLOAT16 = "tensor", "numpy", "bfloat16"  # what a leaf becomes when it is unpacked
_MAX_DEPTH, _MAX_TRIES = 16, 2000


class Column:
    """Arrays or tensors of many samples that stand for the one array that they make together.

    They are joined only where that array goes, so that large ones are copied once. All must be alike, dense, and of
    one of the dtypes of batches.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self.shape = (len(values), *values[0].shape)
        self.dtype = np.dtype(str(values[0].dtype).removeprefix("torch."))

    @property
    def nbytes(self) -> int:
        count: int = math.prod(self.shape)
        return count * self.dtype.itemsize

    def into(self, out: NDArray[Any]) -> None:
        """Fill `out`, C-contiguous and of this shape and dtype."""
        if type(self._values[0]) is np.ndarray:
            np.concatenate(self._values, out=out.reshape(-1, *self.shape[2:]))
        else:
            torch = sys.modules["torch"]
            torch.stack(self._values, out=torch.from_numpy(out))


def pack(batch: Any, *, keep_numpy: bool) -> tuple[list[NDArray[Any] | Column], bytes]:
    """(arrays, skeleton) of a batch; `unpack` puts them together again.

    Numpy arrays become tensors there, or stay numpy arrays with `keep_numpy`. bfloat16 tensors travel as int16. Arrays
    of other types than batches may have (strings, complex, sparse) are pickled inside the skeleton.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: something in the batch cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, keep_numpy)
    pickler.dump(batch)
    return pickler.arrays, file.getvalue()


def unpack(skeleton: bytes, tensors: Sequence[Any]) -> Any:
    """The batch around `tensors`, which are those of `pack`'s arrays. Only for skeletons of a process of our own."""
    return _Unpickler(io.BytesIO(skeleton), tensors).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, keep_numpy: bool) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[NDArray[Any] | Column] = []
        self._keep_numpy = keep_numpy
        self._seen: dict[int, tuple[Any, tuple[int, str]]] = {}  # by id; holds the object, so that ids stay unique

    def persistent_id(self, obj: Any) -> tuple[int, str] | None:
        if id(obj) in self._seen:
            return self._seen[id(obj)][1]
        leaf = self._leaf(obj)
        if leaf is None:
            return None
        array, kind = leaf
        self.arrays.append(array)
        reference = (len(self.arrays) - 1, kind)
        self._seen[id(obj)] = (obj, reference)
        return reference

    def _leaf(self, obj: Any) -> tuple[NDArray[Any] | Column, str] | None:
        if type(obj) is Column:
            return obj, _TENSOR
        if type(obj) is np.ndarray and dtype_name(obj.dtype) in ITEM_NBYTES:
            native = obj.astype(obj.dtype.newbyteorder("="), copy=False)
            return native, _NUMPY if self._keep_numpy else _TENSOR
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor:
            return _tensor_leaf(torch, obj)
        return None


def _tensor_leaf(torch: Any, tensor: Any) -> tuple[NDArray[Any], str] | None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.requires_grad:
        return None
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy(), _BFLOAT16
    if str(tensor.dtype).removeprefix("torch.") not in ITEM_NBYTES:
        return None
    return tensor.numpy(), _TENSOR


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: tuple[int, str]) -> Any:
        index, kind = pid
        tensor = self._tensors[index]
        if kind == _NUMPY:
            return tensor.numpy()
        return tensor.view(sys.modules["torch"].bfloat16) if kind == _BFLOAT16 else tensor


@functools.lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which numpy puts together each time."""
    return dtype.name


def why_unpicklable(obj: Any, name: str) -> str:
    """Where in `obj` the thing is that cannot be pickled, "dataset.transform.fns[1]: <function <lambda> at ...>".

    The empty string where all of it can. Looks through attributes, items, closures of partials and bound methods.
    """
    if _pickles(obj):
        return ""
    tries = _MAX_TRIES
    for _ in range(_MAX_DEPTH):
        for path, child in _children(obj, name):
            tries -= 1
            if not _pickles(child):
                obj, name = child, path
                break
            if tries <= 0:
                return f"{name}: {obj!r:.200}"
        else:
            break
    return f"{name}: {obj!r:.200}"


def _children(obj: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((f"{name}[{key!r:.40}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from ((f"{name}[{k}]", value) for k, value in enumerate(obj))
    elif isinstance(obj, (functools.partial, types.MethodType)):
        parts: Iterable[str] = ("func", "args", "keywords") if isinstance(obj, functools.partial) else ("__self__",)
        yield from ((f"{name}.{part}", getattr(obj, part)) for part in parts)
    elif not isinstance(obj, (type, types.FunctionType, types.ModuleType)):
        yield from ((f"{name}.{key}", value) for key, value in getattr(obj, "__dict__", {}).items())


class _Sink:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


def _pickles(obj: Any) -> bool:
    try:
        pickle.Pickler(_Sink(), protocol=5, buffer_callback=lambda _: None).dump(obj)
    except Exception:
        return False
    return True
