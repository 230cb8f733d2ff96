"""Images in tar archives, laid out as WebDataset does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ddlp.data.base import digest
from ddlp.data.images import IMAGE_EXTENSIONS, ImageFiles
from ddlp.data.packed import Names, int64
from ddlp.data.shard_index import SampleForm, indexed
from ddlp.data.tar import Member, content
from ddlp.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddlp.data.shard_index import ShardIndex


class TarShardsDescription(msgspec.Struct, frozen=True, tag="TarShards", forbid_unknown_fields=True):
    shards: tuple[str, ...]
    label: str
    extensions: tuple[str, ...]
    keep_index: bool = True


class TarShards(ImageFiles):
    """Images in tar archives; a sample is (RGB image, label).

    `shards` is a folder of `*.tar`, one archive, or several. Members of the same name up to its first dot, one behind
    the other, are one sample: `n01/0007.jpg`, `n01/0007.cls`. Samples have the order of the shards, those of a folder
    sorted by name, and of the members in them. The first member with one of the `extensions` is the image, and `label`
    says where its label is:

    "cls"         the text of the member `.cls`; any other suffix will do
    "json:field"  a field of the member `.json`, a whole number or text
    "folder"      the name of the folder that the members are in, "n01"

    When all of them are whole numbers, these are the labels. Otherwise they are the names of classes, and the label is
    the place of the name among all of them, sorted.

    Each shard is indexed once, from its headers; then any sample is read from its place. With `keep_index` the index is
    kept in $XDG_CACHE_HOME/ddlp, or ~/.cache/ddlp, and used again as long as the shard is the same file.

    classes  class names; None where labels are numbers
    labels   of all samples, int64

    Raises:
        UsageError: `label` or `extensions` make no sense.
        DataError: there is no shard; or one cannot be read, is cut off, or has a sample without image or label. The
            message names the shard and the member or sample.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        label: str = "cls",
        extensions: Sequence[str] = IMAGE_EXTENSIONS,
        keep_index: bool = True,
    ) -> None:
        self.label = label
        self.extensions = tuple(extension.lower() for extension in extensions)
        self.keep_index = keep_index
        form = SampleForm.of(label, self.extensions)
        self.shards = _paths(shards)
        indices = [indexed(path, form, keep=keep_index) for path in self.shards]
        self._ends = np.cumsum([len(index) for index in indices])
        self.classes, self.labels = _labelled(indices)
        if not len(self):
            raise DataError(f"{self.shards[0]!r} and {len(indices) - 1} other shards have no sample at all")
        self._offsets = np.concatenate([int64(index.offsets) for index in indices])
        self._nbytes = np.concatenate([int64(index.nbytes) for index in indices])
        self._names = Names.joined([(index.text, index.ends) for index in indices])

    def path(self, id_: int) -> str:
        """The shard and, as if that were a folder, the image's member."""
        return f"{self._shard(id_)}/{self._names[id_]}"

    def place(self, id_: int) -> tuple[str, int, int]:
        """The image's part of its shard."""
        return self._shard(id_), int(self._offsets[id_]), int(self._nbytes[id_])

    def encoded(self, id_: int) -> bytes:
        """The content of the image's member. Raises OSError, or DataError where the shard is shorter than it was."""
        path, offset, nbytes = self.place(id_)
        fd = os.open(path, os.O_RDONLY)
        try:
            return content(fd, Member(self._names[id_], offset, nbytes))
        finally:
            os.close(fd)

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = msgspec.to_builtins(
            TarShardsDescription(self.shards, self.label, self.extensions, self.keep_index)
        )
        return description

    @property
    def fingerprint(self) -> str:
        """Agrees between two machines where names and sizes of the images, classes and labels do."""
        classes = "\0".join(self.classes or ()).encode()
        return digest(classes, self._names.text, self._names.ends, self._nbytes, self.labels)

    def __repr__(self) -> str:
        classes = "" if self.classes is None else f", {len(self.classes)} classes"
        return f"TarShards({self.shards[0]!r}, {len(self)} images in {len(self.shards)} shards{classes})"

    def _shard(self, id_: int) -> str:
        return self.shards[np.searchsorted(self._ends, id_, side="right")]


def _paths(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Absolute paths of the shards. Raises DataError where there is none."""
    if not isinstance(shards, (str, os.PathLike)):
        paths = tuple(os.path.abspath(path) for path in shards)
    elif os.path.isdir(shards):
        top = os.path.abspath(shards)
        paths = tuple(os.path.join(top, name) for name in sorted(os.listdir(top)) if name.endswith(".tar"))
    else:
        paths = (os.path.abspath(shards),)
    if not paths:
        raise DataError(f"no shard: looked for *.tar in {shards!r}")
    return paths


def _labelled(indices: Sequence[ShardIndex]) -> tuple[list[str] | None, NDArray[np.int64]]:
    """The class names, if there are any, and the labels of all samples."""
    values = sorted({value for index in indices for value in index.values})
    numbers = all(_is_number(value) for value in values)
    label_of = {value: int(value) if numbers else place for place, value in enumerate(values)}
    labels = [np.array([label_of[value] for value in index.values], np.int64)[int64(index.codes)] for index in indices]
    return None if numbers else values, np.concatenate(labels)


def _is_number(text: str) -> bool:
    """Whether it is a whole number that fits into int64."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19
