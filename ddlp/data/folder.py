"""Image files in one folder per class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ddlp.data import decode
from ddlp.data.base import Source, digest, read
from ddlp.errors import DataError, SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from PIL import Image

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolderDescription(msgspec.Struct, frozen=True, tag="ImageFolder", forbid_unknown_fields=True):
    root: str
    extensions: tuple[str, ...]
    allow_empty: bool


class ImageFolder(Source):
    """Images in one folder per class, `root/class/.../name.jpg`; a sample is (RGB image, label).

    Classes are sorted by name, and files by folder and name inside their class, as torchvision does. Hidden entries are
    ignored, links are followed, and a link to one of its own parents ends there.

    classes  class names; the label of a sample is an index into them
    labels   of all samples, int64

    Raises:
        DataError: the folder cannot be read, or holds no image; or a class does, unless `allow_empty`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        extensions: Sequence[str] = IMAGE_EXTENSIONS,
        allow_empty: bool = False,
    ) -> None:
        self.root = os.path.abspath(root)
        self.extensions = tuple(extension.lower() for extension in extensions)
        self.allow_empty = allow_empty
        self.classes = _class_names(self.root)
        per_class = [self._files(name) for name in self.classes]
        self._check_found(per_class)
        counts = [len(files) for files in per_class]
        self.labels: NDArray[np.int64] = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self._names, self._ends = _packed([name for files in per_class for name in files])

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    def path(self, id_: int) -> str:
        """The file of a sample."""
        start = self._ends[id_ - 1] if id_ else 0
        name = os.fsdecode(self._names[start : self._ends[id_]].tobytes())
        return os.path.join(self.root, self.classes[self.labels[id_]], name)

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = msgspec.to_builtins(
            ImageFolderDescription(self.root, self.extensions, self.allow_empty)
        )
        return description

    @property
    def fingerprint(self) -> str:
        """Agrees between two machines where classes, file names and labels do."""
        classes = "\0".join(self.classes).encode(errors="surrogateescape")
        return digest(classes, self._names, self._ends, self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        id_ = self._checked(index)
        path = self.path(id_)
        try:
            image = decode.converted(decode.open_image(read(path)), "RGB")
        except Exception as error:
            raise SampleError(f"{type(error).__name__}: {error}", id_, path) from error
        return image, int(self.labels[id_])

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, {len(self)} images, {len(self.classes)} classes)"

    def _files(self, name: str) -> list[str]:
        """Paths of a class's images, relative to its folder, in order."""
        top = os.path.join(self.root, name)
        skip = len(top) + 1
        return [
            os.path.join(folder, file)[skip:]
            for folder, files in sorted(_walk(top, frozenset()))
            for file in sorted(files)
            if file.lower().endswith(self.extensions)
        ]

    def _check_found(self, per_class: list[list[str]]) -> None:
        patterns = ", ".join(f"*{extension}" for extension in self.extensions)
        if not any(per_class):
            raise DataError(f"no image in {self.root!r}: looked for class/{{{patterns}}} and saw {_seen(self.root)}")
        empty = [name for name, files in zip(self.classes, per_class, strict=True) if not files]
        if empty and not self.allow_empty:
            raise DataError(
                f"no {{{patterns}}} in classes {empty} of {self.root!r}; pass allow_empty=True if that is so"
            )


def _class_names(root: str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the image folder {root!r}: {error.strerror}") from error


def _walk(folder: str, parents: frozenset[tuple[int, int]]) -> Iterator[tuple[str, list[str]]]:
    """Each folder below `folder` with its file names, hidden ones left out."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in parents:
        return
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if not entry.name.startswith(".")]
    yield folder, [entry.name for entry in entries if not entry.is_dir()]
    for entry in entries:
        if entry.is_dir():
            yield from _walk(entry.path, parents | {identity})


def _seen(root: str) -> str:
    """A few words on what lies in a folder instead of images."""
    names = [
        os.path.relpath(os.path.join(folder, file), root)
        for folder, files in _walk(root, frozenset())
        for file in files
    ]
    examples = "".join(f", {name!r}" for name in sorted(names)[:3])
    return f"{len(_class_names(root))} class folders and {len(names)} other files{examples}"


def _packed(names: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The names one behind the other, and where each ends: two buffers instead of a million strings."""
    encoded = [os.fsencode(name) for name in names]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends
