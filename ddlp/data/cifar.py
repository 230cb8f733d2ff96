"""CIFAR-10 and its two official file forms: pickled dictionaries (py) and records of 3073 bytes (bin)."""

from __future__ import annotations

import io
import os
import pickle
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from ddlp.data.arrays import ArrayDataset
from ddlp.data.base import digest, read, replacing
from ddlp.errors import DataError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]  # planar images (n, 3072), labels (n,)

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FOLDERS = {"py": "cifar-10-batches-py", "bin": "cifar-10-batches-bin"}
_SUFFIXES = {"py": "", "bin": ".bin"}
_PIXELS = 3 * 32 * 32


class Cifar10Description(msgspec.Struct, frozen=True, tag="CIFAR10", forbid_unknown_fields=True):
    root: str
    train: bool


class CIFAR10(ArrayDataset):
    """CIFAR-10 in its official files, `cifar-10-batches-py` or `cifar-10-batches-bin` in `root`, or `root` itself.

    A sample is ((32, 32, 3) uint8, int64 label).

    Raises:
        DataError: no such folder, or a file that is not of the format.
    """

    classes: ClassVar[tuple[str, ...]] = CLASSES

    def __init__(self, root: str | os.PathLike[str], train: bool = True) -> None:
        self.root = os.path.abspath(root)
        self.train = train
        super().__init__(*read_cifar10(self.root, train))

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = msgspec.to_builtins(Cifar10Description(self.root, self.train))
        return description

    @property
    def fingerprint(self) -> str:
        """Agrees between two machines where the labels do."""
        return digest(self.arrays[1])


def read_cifar10(root: str, train: bool) -> Samples:
    """Images (n, 32, 32, 3) uint8 and labels int64 of the training or the test set below `root`.

    Raises:
        DataError: there is no such folder, or a file is missing or not of the format.
    """
    folder, form = _found(root)
    parts = [_read_file(os.path.join(folder, name + _SUFFIXES[form]), form) for name in _names(train)]
    planar = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    return np.ascontiguousarray(planar.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def write_cifar10(root: str | os.PathLike[str], count: int, seed: int = 0, form: str = "py") -> str:
    """Write a made-up CIFAR-10 of `count` training images and a fifth as many test images; returns `root`.

    The images of a class share a pattern under noise, so that training on them learns something.

    Raises:
        UsageError: `form` is neither "py" nor "bin", or there are fewer images than files.
    """
    if form not in _FOLDERS or count < 5:
        raise UsageError(f"form must be 'py' or 'bin' and count at least 5: {form!r}, {count}")
    folder = os.path.join(root, _FOLDERS[form])
    os.makedirs(folder, exist_ok=True)
    random = np.random.default_rng(seed)
    patterns = random.integers(64, 192, (len(CLASSES), _PIXELS))
    sizes = [len(part) for part in np.array_split(np.arange(count), 5)] + [count // 5]
    for name, size in zip((*_names(True), *_names(False)), sizes, strict=True):
        labels = random.integers(0, len(CLASSES), size)
        images = (patterns[labels] + random.integers(-64, 64, (size, _PIXELS))).astype(np.uint8)
        _write_file(os.path.join(folder, name + _SUFFIXES[form]), form, name, (images, labels))
    return os.fspath(root)


def _names(train: bool) -> tuple[str, ...]:
    return tuple(f"data_batch_{k}" for k in range(1, 6)) if train else ("test_batch",)


def _found(root: str) -> tuple[str, str]:
    """The folder with the batches, and its form."""
    for form, name in _FOLDERS.items():
        for folder in (os.path.join(root, name), root):
            if os.path.isfile(os.path.join(folder, "test_batch" + _SUFFIXES[form])):
                return folder, form
    raise DataError(f"no CIFAR-10 in {root!r}: it should hold {' or '.join(_FOLDERS.values())} with the batch files")


def _read_file(path: str, form: str) -> Samples:
    try:
        data = read(path)
        return _from_pickle(data) if form == "py" else _from_records(data)
    except Exception as error:
        raise DataError(f"{path!r} is not a CIFAR-10 file: {error}") from error


def _from_records(data: bytes) -> Samples:
    if len(data) % (1 + _PIXELS):
        raise DataError(f"its size, {len(data)}, is not a multiple of {1 + _PIXELS}")
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + _PIXELS)
    return _checked(records[:, 1:], records[:, 0].astype(np.int64))


def _from_pickle(data: bytes) -> Samples:
    content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    # The official files were written by Python 2, whose strings come as bytes.
    named = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    return _checked(np.asarray(named["data"]), np.asarray(named["labels"], np.int64))


def _checked(images: NDArray[Any], labels: NDArray[np.int64]) -> Samples:
    if images.dtype != np.uint8 or images.shape != (*labels.shape, _PIXELS) or labels.ndim != 1:
        raise DataError(f"it has {images.dtype} images {images.shape} and labels {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(CLASSES)):
        raise DataError(f"its labels are in {labels.min()}..{labels.max()}, not in 0..{len(CLASSES) - 1}")
    return images, labels


def _write_file(path: str, form: str, name: str, samples: Samples) -> None:
    images, labels = samples
    with replacing(path) as file:
        if form == "py":
            pickle.dump({"batch_label": name, "labels": labels.tolist(), "data": images}, file, protocol=3)
        else:
            file.write(np.column_stack([labels.astype(np.uint8), images]).tobytes())


class _Unpickler(pickle.Unpickler):
    """Loads numpy arrays and basic types only: the files come from outside."""

    _ALLOWED: ClassVar = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for everything else."""
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 file needs")
        return self._ALLOWED[module, name]
