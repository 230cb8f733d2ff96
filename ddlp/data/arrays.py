"""Arrays in memory or in .npy files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ddlp.data.base import Source, digest, replacing
from ddlp.errors import DataError, UsageError
from ddlp.types import ITEM_NBYTES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class ArrayDescription(msgspec.Struct, frozen=True, tag="ArrayDataset", forbid_unknown_fields=True):
    paths: tuple[str, ...]


class ArrayDataset(Source):
    """Arrays that share their first dimension; a sample is a tuple with one row of each.

    An argument is an array in memory or the path of an .npy file, which is mapped and not read.

    Raises:
        UsageError: no arrays, of different lengths, or of a dtype that batches cannot have.
        DataError: a path is not an .npy file.
    """

    def __init__(self, *arrays: ArrayLike | str | os.PathLike[str]) -> None:
        if not arrays:
            raise UsageError("ArrayDataset needs at least one array or .npy path")
        self._sources = tuple(_source(array) for array in arrays)
        self.arrays = self._opened()
        _check_arrays(self.arrays)

    def saved(self, folder: str | os.PathLike[str]) -> ArrayDataset:
        """Write each array to `folder` as array0.npy, array1.npy, ... and return the data set of these files."""
        os.makedirs(folder, exist_ok=True)
        paths = [os.path.join(os.path.abspath(folder), f"array{k}.npy") for k in range(len(self.arrays))]
        for path, array in zip(paths, self.arrays, strict=True):
            with replacing(path) as file:
                np.save(file, array)
        return ArrayDataset(*paths)

    def describe(self) -> dict[str, Any]:
        paths = tuple(source for source in self._sources if isinstance(source, str))
        if len(paths) < len(self._sources):
            raise UsageError("arrays in memory cannot be described to an agent: pass .npy paths, as saved() does")
        description: dict[str, Any] = msgspec.to_builtins(ArrayDescription(paths))
        return description

    @property
    def fingerprint(self) -> str:
        """Agrees between two machines where the shapes and dtypes do."""
        return digest(*(f"{array.dtype.name}{array.shape};".encode() for array in self.arrays))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        id_ = self._checked(index)
        return tuple(array[id_] for array in self.arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.arrays = self._opened()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{array.dtype.name}{array.shape}' for array in self.arrays)})"

    def _opened(self) -> tuple[NDArray[Any], ...]:
        return tuple(_mapped(source) if isinstance(source, str) else source for source in self._sources)


def _source(array: ArrayLike | str | os.PathLike[str]) -> NDArray[Any] | str:
    if isinstance(array, (str, os.PathLike)):
        return os.path.abspath(array)
    return np.asarray(array, order="C")


def _mapped(path: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot map {path!r} as an .npy file: {error}") from error
    return array


def _check_arrays(arrays: tuple[NDArray[Any], ...]) -> None:
    for k, array in enumerate(arrays):
        if array.ndim == 0 or array.dtype.name not in ITEM_NBYTES:
            raise UsageError(f"array {k} is {array.dtype} of shape {array.shape}: batches are made of rows of numbers")
    if len({len(array) for array in arrays}) > 1:
        raise UsageError(f"the arrays differ in length: {', '.join(str(array.shape) for array in arrays)}")
