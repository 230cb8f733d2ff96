"""The members of a tar archive, from its headers alone: POSIX ustar and pax, and GNU's long names and large numbers.

A header is a block of 512 bytes; the content behind it is padded to whole blocks. Headers of some types say something
of the next member: its long name (GNU "L", pax "x") or its size. A block of zeros ends the archive.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, NamedTuple

from ddlp.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 512
_ZEROS = bytes(BLOCK)
_MAX_SAID_NBYTES = 1 << 20  # of what is said of one member: no name is longer
_HEADER = struct.Struct("100s 24x 12s 12x 8s 1s 100x 8s 80x 155s 12x")
_USTAR = b"ustar\0"
_REGULAR = (b"0", b"\0", b"7")
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_LONG_NAME, _PAX, _SPARSE = b"L", b"x", b"S"
_NOT_OF_INTEREST = (b"K", b"g")  # said of links, and of all members
_SAYING = (_LONG_NAME, _PAX, *_NOT_OF_INTEREST)


class Member(NamedTuple):
    """A regular file in an archive: its content is `nbytes` from `offset` on."""

    name: str
    offset: int
    nbytes: int


class _Said(NamedTuple):
    """What was said of the next member."""

    name: bytes | None = None
    nbytes: int | None = None


class _Header(NamedTuple):
    kind: bytes
    name: bytes
    nbytes: int

    def corrected(self, said: _Said) -> _Header:
        """With what was said of it; `said` is of the next member, and not of another header that says something."""
        if self.kind in _SAYING:
            return self
        nbytes = self.nbytes if said.nbytes is None else said.nbytes
        return _Header(self.kind, said.name or self.name, 0 if self.kind in _WITHOUT_CONTENT else nbytes)


def members(fd: int, nbytes: int, path: str) -> Iterator[Member]:
    """The regular files of the archive `path`, which is open as `fd` and has `nbytes`, in their order.

    Raises:
        DataError: it is no tar archive, is damaged, or shorter than it says; the message names archive and member.
        OSError: it cannot be read.
    """
    at, last, said = 0, "", _Said()
    while (block := os.pread(fd, BLOCK, at)) != _ZEROS:
        behind = f", behind member {last!r}" if last else ""
        if len(block) < BLOCK:
            raise DataError(f"{path!r} was cut off at byte {nbytes}{behind}: it has no end mark")
        try:
            header = _header(block).corrected(said)
            name = header.name.decode(errors="surrogateescape")
            if at + BLOCK + header.nbytes > nbytes:
                inside = behind if header.kind in _SAYING else f", inside member {name!r}"
                raise DataError(f"{path!r} was cut off at byte {nbytes}{inside}")
            said = _heard(header, said, fd, at + BLOCK)
        except ValueError as error:
            hint = "" if at else "; a compressed archive cannot be read at random, unpack it first"
            raise DataError(f"{path!r} is no sound tar archive: {error}, at byte {at}{behind}{hint}") from error
        if header.kind in _REGULAR:
            yield Member(name, at + BLOCK, header.nbytes)
            last = name
        at += BLOCK + -(-header.nbytes // BLOCK) * BLOCK


def content(fd: int, member: Member) -> bytes:
    """All of a member. Raises DataError where the archive ends before it does."""
    data = os.pread(fd, member.nbytes, member.offset)
    while len(data) < member.nbytes:
        if not (more := os.pread(fd, member.nbytes - len(data), member.offset + len(data))):
            raise DataError(f"the archive was cut off inside member {member.name!r}")
        data += more
    return data


def _header(block: bytes) -> _Header:
    """Raises ValueError."""
    name, size, checksum, kind, magic, prefix = _HEADER.unpack(block)
    # Most bytes of a header are zero: summed up without them it is checked in a third of the time.
    if sum(block.replace(b"\0", b"")) - sum(checksum) + len(checksum) * ord(" ") != _number(checksum):
        raise ValueError("the checksum of a header is wrong")
    if kind == _SPARSE:
        raise ValueError("it has a sparse file")
    name = _text(name)
    if magic.startswith(_USTAR) and (folder := _text(prefix)):
        name = folder + b"/" + name
    return _Header(kind, name, _number(size))


def _heard(header: _Header, said: _Said, fd: int, start: int) -> _Said:
    """What has been said of the next member, once `header` is read. Raises ValueError."""
    if header.kind in _NOT_OF_INTEREST:
        return said
    if header.kind not in (_LONG_NAME, _PAX):
        return _Said()
    if header.nbytes > _MAX_SAID_NBYTES:
        raise ValueError(f"{header.nbytes} bytes are said of one member")
    content = os.pread(fd, header.nbytes, start)
    if header.kind == _LONG_NAME:
        return said._replace(name=_text(content))
    records = dict(_records(content))
    if any(key.startswith(b"GNU.sparse.") for key in records):
        raise ValueError("it has a sparse file")
    size = records.get(b"size")
    return _Said(records.get(b"path", said.name), said.nbytes if size is None else _digits(size, 10))


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of pax records, each `length key=value` and a newline. Raises ValueError."""
    while content:
        digits, space, _ = content.partition(b" ")
        length = _digits(digits, 10)
        record, content = content[:length], content[length:]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not (space and equals and record.endswith(b"\n") and len(record) == length):
            raise ValueError("a pax header is broken")
        yield key, value


def _number(field: bytes) -> int:
    """Octal digits or, with the first bit set, base 256. Raises ValueError."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return _digits(_text(field).strip(b" ") or b"0", 8)


def _digits(text: bytes, base: int) -> int:
    if not text.isdigit():  # int() would take signs, underscores and spaces
        raise ValueError(f"{text[:20]!r} is not a number")
    return int(text, base)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
