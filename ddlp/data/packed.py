"""Indices of large data sets: a million names in two buffers, and one checked file that keeps an index between runs.

A kept index only ever saves time: whatever is wrong with its file, or with writing it, is the same as not having it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from ddlp.data.base import digest, read, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

T = TypeVar("T", bound=msgspec.Struct)

MAX_NBYTES = 1 << 30  # of a kept index: some thirty million files
# A change so soon after another may leave no trace in a time stamp: of what changed last then, nothing is kept.
_RACY_NS = 2_000_000_000
_CRC = struct.Struct("<I")
_STATUS = struct.Struct("<QqqQ")


class Names:
    """Names one behind the other, and where each ends."""

    def __init__(self, text: bytes, ends: bytes) -> None:
        """As `packed` makes them."""
        self.text: NDArray[np.uint8] = np.frombuffer(text, np.uint8)
        self.ends = int64(ends)

    @classmethod
    def joined(cls, parts: Sequence[tuple[bytes, bytes]]) -> Names:
        """The names of one or more calls of `packed`, one behind the other."""
        starts = np.cumsum([0, *(len(text) for text, _ in parts)])
        ends = [int64(ends) + start for (_, ends), start in zip(parts, starts, strict=False)]
        return cls(b"".join(text for text, _ in parts), np.concatenate(ends).astype("<i8").tobytes())

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> str:
        """Name number k, 0 to len - 1."""
        start = self.ends[k - 1] if k else 0
        return os.fsdecode(self.text[start : self.ends[k]].tobytes())


def packed(names: Iterable[bytes]) -> tuple[bytes, bytes]:
    """The text of the names, and where each ends, int64 little-endian; checked by `check_packed`."""
    kept = list(names)
    return b"".join(kept), np.cumsum([len(name) for name in kept], dtype="<i8").tobytes()


def check_packed(text: bytes, ends: bytes) -> None:
    """Raises ValueError for what `packed` cannot have made."""
    bounds = int64(ends)
    if (np.diff(bounds, prepend=0) < 0).any() or (bounds[-1] if len(bounds) else 0) != len(text):
        raise ValueError("the ends of the names do not rise to the length of their text")


def int64(data: bytes) -> NDArray[np.int64]:
    """The numbers in little-endian bytes. Raises ValueError for a part of a number."""
    return np.frombuffer(data, "<i8")


def stamp(statuses: Iterable[os.stat_result]) -> str:
    """Sixteen hex digits that differ once a folder has other entries, or a file other content.

    The time of change is part of it, which unlike that of modification cannot be set back.
    """
    return digest(*(_STATUS.pack(s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for s in statuses))


def settled(statuses: Iterable[os.stat_result], now_ns: int) -> bool:
    """Whether a change after `now_ns` is sure to change the stamp."""
    return all(max(s.st_mtime_ns, s.st_ctime_ns) < now_ns - _RACY_NS for s in statuses)


def kept_path(kind: str, *key: bytes) -> str | None:
    """The file of an index in the cache folder, $XDG_CACHE_HOME/ddlp or ~/.cache/ddlp; None: there is no such place."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(caches, "ddlp", f"{digest(*key)}.{kind}") if os.path.isabs(caches) else None


def load(path: str, kind: type[T]) -> T | None:
    """The index that `save` wrote, its form checked by `kind`; None where there is none that can be read."""
    try:
        if os.path.getsize(path) > MAX_NBYTES:
            return None
        data = memoryview(read(path))
        if len(data) < _CRC.size or zlib.crc32(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
            return None
        return msgspec.msgpack.decode(data[_CRC.size :], type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save(path: str, index: msgspec.Struct) -> None:
    """Keep an index, whole or not at all, for the next run."""
    data = msgspec.msgpack.encode(index)
    if len(data) > MAX_NBYTES - _CRC.size:
        return
    with contextlib.suppress(OSError):  # a home that cannot be written to
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with replacing(path) as file:
            file.write(_CRC.pack(zlib.crc32(data)))
            file.write(data)
