"""Image files in one folder per class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ddlp.data.base import digest, read
from ddlp.data.images import IMAGE_EXTENSIONS, ImageFiles
from ddlp.data.listing import listed, seen
from ddlp.data.packed import Names, int64
from ddlp.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class ImageFolderDescription(msgspec.Struct, frozen=True, tag="ImageFolder", forbid_unknown_fields=True):
    root: str
    extensions: tuple[str, ...]
    allow_empty: bool
    keep_listing: bool = True


class ImageFolder(ImageFiles):
    """Images in one folder per class, `root/class/.../name.jpg`; a sample is (RGB image, label).

    Classes are sorted by name, and files by folder and name inside their class, as torchvision does. Hidden entries are
    ignored, links are followed, and a link to one of its own parents ends there.

    With `keep_listing` the listing of a large folder is kept in $XDG_CACHE_HOME/ddlp, or ~/.cache/ddlp, and used again
    as long as nothing was added, removed or renamed.

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
        keep_listing: bool = True,
    ) -> None:
        self.root = os.path.abspath(root)
        self.extensions = tuple(extension.lower() for extension in extensions)
        self.allow_empty = allow_empty
        self.keep_listing = keep_listing
        listing = listed(self.root, self.extensions, keep=keep_listing)
        self.classes = [os.fsdecode(name) for name in listing.classes]
        counts = int64(listing.counts)
        self._check_found(counts)
        self.labels: NDArray[np.int64] = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self._names = Names(listing.text, listing.ends)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    def path(self, id_: int) -> str:
        """The file of a sample."""
        return os.path.join(self.root, self.classes[self.labels[id_]], self._names[id_])

    def place(self, id_: int) -> tuple[str, int, int]:
        """All of its file."""
        return self.path(id_), 0, 0

    def encoded(self, id_: int) -> bytes:
        """The content of its file. Raises OSError."""
        return read(self.path(id_))

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = msgspec.to_builtins(
            ImageFolderDescription(self.root, self.extensions, self.allow_empty, self.keep_listing)
        )
        return description

    @property
    def fingerprint(self) -> str:
        """Agrees between two machines where classes, file names and labels do."""
        classes = "\0".join(self.classes).encode(errors="surrogateescape")
        return digest(classes, self._names.text, self._names.ends, self.labels)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, {len(self)} images, {len(self.classes)} classes)"

    def _check_found(self, counts: NDArray[np.int64]) -> None:
        patterns = ", ".join(f"*{extension}" for extension in self.extensions)
        if not counts.any():
            raise DataError(f"no image in {self.root!r}: looked for class/{{{patterns}}} and saw {seen(self.root)}")
        empty = [self.classes[label] for label in np.flatnonzero(counts == 0)]
        if empty and not self.allow_empty:
            raise DataError(
                f"no {{{patterns}}} in classes {empty} of {self.root!r}; pass allow_empty=True if that is so"
            )
