"""Which samples a tar archive holds, and where: read once from its headers, and kept for the next run."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ddlp.data.packed import check_packed, int64, kept_path, load, packed, save, settled, stamp
from ddlp.data.tar import Member, content, members
from ddlp.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WORTH_KEEPING_NBYTES = 1 << 20  # a smaller shard is indexed in a moment
_MAX_LABEL_NBYTES = 1 << 20  # of a member that holds a label
_FOLDER = "folder"


class SampleForm(NamedTuple):
    """What is the image of a sample, and what its label.

    extensions  of the member that is the image
    suffix      of the member that is the label, or "folder"
    field       of that member's JSON object; "" for all of its text
    """

    extensions: tuple[str, ...]
    suffix: str
    field: str

    @classmethod
    def of(cls, label: str, extensions: tuple[str, ...]) -> SampleForm:
        """By `label`: "cls", "json:field" or "folder". Raises UsageError."""
        suffix, colon, field = label.partition(":")
        if not suffix or bool(colon) != bool(field) or bool(field) != (suffix == "json"):
            raise UsageError(f"label must be 'cls' or another suffix, 'json:field' or 'folder': {label!r}")
        if not extensions or not all(extension.startswith(".") for extension in extensions):
            raise UsageError(f"extensions must begin with a dot, as '.jpg' does: {extensions}")
        return cls(extensions, suffix, field)


class ShardIndex(msgspec.Struct, frozen=True):
    """The samples of a shard, and the `stamp` of the file that they were looked up in.

    offsets  where the image of each begins, and
    nbytes   its length
    text     names of the images' members, one behind the other, and where each of them
    ends     ends
    values   the different labels, as text
    codes    which of these each sample has

    The bytes are int64, little-endian, but for `text`.
    """

    stamp: str
    offsets: bytes
    nbytes: bytes
    text: bytes
    ends: bytes
    values: tuple[str, ...]
    codes: bytes

    def __post_init__(self) -> None:
        check_packed(self.text, self.ends)
        columns = [int64(self.offsets), int64(self.nbytes), int64(self.codes)]
        if any(len(column) != len(self) or column.min(initial=0) < 0 for column in columns):
            raise ValueError("a column of a shard's index does not have a number for each sample")
        if columns[2].max(initial=-1) >= len(self.values):
            raise ValueError("a shard's index has a label without text")

    def __len__(self) -> int:
        """Samples."""
        return len(self.ends) // 8


def indexed(path: str, form: SampleForm, *, keep: bool = True) -> ShardIndex:
    """The index of a shard: as kept, if that is the same file still, or else read anew and, with `keep`, kept.

    Raises:
        DataError: the shard cannot be read, is damaged, or has a sample without image or label.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return _kept(fd, path, form) if keep else _indexed_anew(fd, path, form)
        finally:
            os.close(fd)
    except OSError as error:
        raise DataError(f"cannot read the shard {path!r}: {error.strerror}") from error


def _kept(fd: int, path: str, form: SampleForm) -> ShardIndex:
    status, now_ns = os.fstat(fd), time.time_ns()
    words = (form.suffix, form.field, *form.extensions)
    kept = kept_path("shard", os.fsencode(os.path.realpath(path)), *map(str.encode, words))
    known = None if kept is None else load(kept, ShardIndex)
    if known is not None and known.stamp == stamp([status]):
        return known
    index = _indexed_anew(fd, path, form)
    if kept is not None and status.st_size >= WORTH_KEEPING_NBYTES and settled([status], now_ns):
        save(kept, index)
    return index


def _indexed_anew(fd: int, path: str, form: SampleForm) -> ShardIndex:
    status = os.fstat(fd)
    images, labels = [], []
    for key, parts in _samples(members(fd, status.st_size, path), path):
        try:
            images.append(_image(parts, form))
            labels.append(_label(fd, key, parts, form))
        except ValueError as error:
            raise DataError(f"{path!r}: sample {key!r} {error}; it has {', '.join(parts)}") from error
    values = sorted(set(labels))
    code_of = {value: code for code, value in enumerate(values)}
    text, ends = packed(image.name.encode(errors="surrogateescape") for image in images)
    return ShardIndex(
        stamp([status]),
        _column(image.offset for image in images),
        _column(image.nbytes for image in images),
        text,
        ends,
        tuple(values),
        _column(code_of[label] for label in labels),
    )


def _samples(found: Iterable[Member], path: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Key and members of each sample, these by suffix, as ".jpg"."""
    split = ((*_split(member.name), member) for member in found)
    named = (item for item in split if item[0])
    for key, group in itertools.groupby(named, key=lambda item: item[0]):
        parts: dict[str, Member] = {}
        for _, suffix, member in group:
            if suffix in parts:
                raise DataError(f"{path!r}: sample {key!r} has two members {suffix}: {member.name!r} is the second")
            parts[suffix] = member
        yield key, parts


def _split(name: str) -> tuple[str, str]:
    """Key and suffix of a member; no key for what belongs to no sample: folders, hidden files, names without suffix."""
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return (folder + slash + stem, dot + suffix.lower()) if stem and suffix else ("", "")


def _image(parts: dict[str, Member], form: SampleForm) -> Member:
    """Raises ValueError."""
    for suffix, member in parts.items():
        if suffix in form.extensions:
            return member
    raise ValueError(f"has no image ({', '.join(form.extensions)})")


def _label(fd: int, key: str, parts: dict[str, Member], form: SampleForm) -> str:
    """Raises ValueError."""
    if form.suffix == _FOLDER:
        label = key.rpartition("/")[0].rpartition("/")[2]
    elif (member := parts.get(f".{form.suffix}")) is None:
        raise ValueError(f"has no .{form.suffix}")
    elif member.nbytes > _MAX_LABEL_NBYTES:
        raise ValueError(f"has a .{form.suffix} of {member.nbytes} bytes, which is no label")
    else:
        text = content(fd, member)
        label = (_field(text, form.field) if form.field else text.decode()).strip()
    if label in ("", "."):
        raise ValueError("has an empty label")
    label.encode()  # raises for the name of a folder that is not UTF-8
    return label


def _field(text: bytes, field: str) -> str:
    """Raises ValueError."""
    try:
        value: Any = msgspec.json.decode(text, type=dict[str, Any]).get(field)
    except msgspec.MsgspecError as error:
        raise ValueError(f"has JSON that cannot be read ({error})") from error
    if not isinstance(value, (int, str)) or isinstance(value, bool):
        raise ValueError(f"has {value!r:.40} as field {field!r}, which is neither a whole number nor text")
    return str(value)


def _column(numbers: Iterable[int]) -> bytes:
    return np.fromiter(numbers, "<i8").tobytes()
