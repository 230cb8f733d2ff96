"""Which images lie below a folder, listed once.

A listing is kept for the next run and checked there. Whenever an entry is added, removed or renamed, the times of its
folder change; so it is enough to look at the folders, of which there are few, and not at the files in them. What a
file holds does not matter to the listing.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ddlp.data.packed import check_packed, int64, kept_path, load, packed, save, settled, stamp
from ddlp.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WORTH_KEEPING = 10_000  # files: fewer are listed in a moment


class Listing(msgspec.Struct, frozen=True):
    """The images below a root, class by class; names are bytes, as the system has them.

    classes  names of the class folders, sorted
    counts   of images in each class
    text     paths relative to the class's folder, one behind the other, and where each of them
    ends     ends
    folders  every folder that was read, relative to the root, and what these looked like
    stamp    before they were read

    `counts` and `ends` are int64, little-endian.
    """

    classes: tuple[bytes, ...]
    counts: bytes
    text: bytes
    ends: bytes
    folders: tuple[bytes, ...]
    stamp: str

    def __post_init__(self) -> None:
        check_packed(self.text, self.ends)
        counts = int64(self.counts)
        if len(counts) != len(self.classes) or (counts < 0).any() or counts.sum() != len(self):
            raise ValueError("the counts of the classes are not those of the names")

    def __len__(self) -> int:
        """Images."""
        return len(self.ends) // 8

    def is_current(self, root: str) -> bool:
        """Whether all folders are as they were when they were read."""
        top = os.fsencode(root)
        try:
            return self.stamp == stamp(os.stat(os.path.join(top, folder)) for folder in self.folders)
        except OSError:
            return False


class Folder(NamedTuple):
    """A folder that was read: its status before that, and the names of its files without hidden ones."""

    path: str
    status: os.stat_result
    files: list[str]


def listed(root: str, extensions: Sequence[str], *, keep: bool = True) -> Listing:
    """The images below `root`: as kept, if no folder has changed since, or else listed anew and, with `keep`, kept.

    Raises:
        DataError: a folder cannot be read.
    """
    if not keep:
        return _listed_anew(root, extensions)[0]
    suffixes = [os.fsencode(extension) for extension in extensions]
    path = kept_path("listing", os.fsencode(os.path.realpath(root)), *suffixes)
    known = None if path is None else load(path, Listing)
    if known is not None and known.is_current(root):
        return known
    begun_ns = time.time_ns()
    listing, folders = _listed_anew(root, extensions)
    if path is not None and len(listing) >= WORTH_KEEPING and settled((f.status for f in folders), begun_ns):
        save(path, listing)
    return listing


def seen(root: str) -> str:
    """A few words on what lies in a folder instead of images."""
    names = [
        os.path.relpath(os.path.join(folder.path, file), root)
        for folder in _walk(root, frozenset())
        for file in folder.files
    ]
    examples = "".join(f", {name!r}" for name in sorted(names)[:3])
    return f"{len(_class_names(root))} class folders and {len(names)} other files{examples}"


def _listed_anew(root: str, extensions: Sequence[str]) -> tuple[Listing, list[Folder]]:
    """The listing, and every folder that it was read from."""
    try:
        top = Folder(root, os.stat(root), [])
        classes = _class_names(root)
        per_class = [sorted(_walk(os.path.join(root, name), frozenset()), key=_by_path) for name in classes]
    except OSError as error:
        raise DataError(f"cannot read the image folder {error.filename!r}: {error.strerror}") from error
    names = [_images(folders, tuple(extensions)) for folders in per_class]
    counts = np.array([len(of_class) for of_class in names], "<i8").tobytes()
    read = [top, *itertools.chain.from_iterable(per_class)]
    relative = tuple(os.fsencode(os.path.relpath(folder.path, root)) for folder in read)
    text, ends = packed(itertools.chain.from_iterable(names))
    seen_as = stamp(folder.status for folder in read)
    return Listing(tuple(map(os.fsencode, classes)), counts, text, ends, relative, seen_as), read


def _images(folders: Sequence[Folder], extensions: tuple[str, ...]) -> list[bytes]:
    """Paths of a class's images relative to its folder, the first of `folders`, in order."""
    skip = len(folders[0].path) + 1
    return [
        os.fsencode(os.path.join(folder.path, file)[skip:])
        for folder in folders
        for file in sorted(folder.files)
        if file.lower().endswith(extensions)
    ]


def _class_names(root: str) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _walk(folder: str, parents: frozenset[tuple[int, int]]) -> Iterator[Folder]:
    """Each folder from `folder` down; a link back to one of its own parents ends."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in parents:
        return
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if not entry.name.startswith(".")]
    yield Folder(folder, status, [entry.name for entry in entries if not entry.is_dir()])
    for entry in entries:
        if entry.is_dir():
            yield from _walk(entry.path, parents | {identity})


def _by_path(folder: Folder) -> str:
    return folder.path
