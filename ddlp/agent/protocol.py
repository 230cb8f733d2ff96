"""What a host and an agent say to each other: bytes <-> messages, and no I/O.

A frame is a little-endian u32 length and that many bytes of msgpack, a tagged message. Frames are bounded, and each
side accepts only the other side's messages, so a peer can neither exhaust memory nor smuggle in an object: msgspec
validates every field, and nothing is ever unpickled here.

The conversation, per agent:

    host   Hello                      agent  Welcome
    host   Open                       agent  Opened | Failed(ticket 0)
    host   Begin        (each epoch; no answer)
    host   Make                       agent  Made | Failed
                                      agent  Need (only for batches without a fixed form)
    host   Grant                      agent  Made | Failed
    host   Forget       (give up a ticket, or discard its finished batch)
    host   end of file                agent  ends, and takes its store with it

A ticket numbers the Makes of one connection, from 1 up. An agent answers each Make once, in the order in which it was
asked: an answer to a later Make says that an earlier one was lost. A Make that is forgotten before it was answered is
answered too (Failed, "forgotten"), so that the host knows when the agent no longer touches its memory.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from ddlp.data.sampling import ListedPlan, Plan
from ddlp.errors import ProtocolError
from ddlp.types import Layout, Leaf

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
MAX_FRAME_NBYTES = 64 << 20
CHECKED_NBYTES = 2 << 20  # of a batch's bytes under one checksum, so that several threads can read and check a batch
_LENGTH = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The host speaks first. `version` must be the agent's own."""

    version: int = VERSION


class Open(msgspec.Struct, frozen=True, tag=True):
    """The data set and the recipe, described: `dataset` and `recipe` are their JSON forms.

    `python` means that the job was handed over at start as a pickle by the parent process instead; then both are empty.
    """

    dataset: bytes = b""
    recipe: bytes = b""
    python: bool = False


class Begin(msgspec.Struct, frozen=True, tag=True):
    """An epoch begins: every later Make speaks of batch indices of `plan`."""

    plan: Plan | ListedPlan


class Make(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Make rows lo..hi of batch `index`.

    `offset` and `capacity` say where in shared memory the whole batch goes; an agent with a file store ignores them.
    """

    ticket: int
    index: int
    lo: int
    hi: int
    offset: int = 0
    capacity: int = 0


class Grant(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The larger place that Need asked for."""

    ticket: int
    offset: int
    capacity: int


class Forget(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Stop working on this ticket, or throw its finished batch away; of an unknown ticket nothing is left to do."""

    ticket: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The agent's answer to Hello: its `version`, process id, and the `kernels` (library versions) that make pixels."""

    version: int
    pid: int
    kernels: dict[str, str]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The agent sees `samples` samples, listed with this `fingerprint`; batches have this `layout` (None: free)."""

    samples: int
    fingerprint: str
    layout: Layout | None


class Made(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What a ticket asked for is done: `nbytes` of it. Times are seconds.

    A file store says where the batch lies: its bytes begin at `offset` of the file `path`, `crcs` are their checksums.
    A batch without a fixed form brings its `leaves` and its `skeleton`.
    """

    ticket: int
    nbytes: int
    made_s: float = 0.0
    cpu_s: float = 0.0
    path: str = ""
    offset: int = 0
    crcs: tuple[int, ...] = ()
    leaves: tuple[Leaf, ...] | None = None
    skeleton: bytes | None = None


class Need(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The batch is ready but larger than its place: it needs `nbytes`."""

    ticket: int
    nbytes: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A ticket failed (ticket 0: Open failed). `kind` says why; "full" is a store without room.

    `exception` is the pickled original; only a process that the host itself started may send one.
    """

    ticket: int
    kind: Literal["data", "full", "device", "forgotten"]
    message: str
    sample_id: int | None = None
    path: str | None = None
    traceback: str = ""
    exception: bytes | None = None


HostMessage = Hello | Open | Begin | Make | Grant | Forget
AgentMessage = Welcome | Opened | Made | Need | Failed
Heard = TypeVar("Heard", HostMessage, AgentMessage)

_encoder = msgspec.msgpack.Encoder()


def checksums(payload: memoryview) -> tuple[int, ...]:
    """The CRC-32 of each CHECKED_NBYTES of a batch's bytes; the last part may be shorter."""
    return tuple(zlib.crc32(payload[at : at + CHECKED_NBYTES]) for at in range(0, len(payload), CHECKED_NBYTES))


def encode(message: HostMessage | AgentMessage) -> bytes:
    """One frame. Raises ProtocolError for a message larger than a frame may be."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_NBYTES:
        raise ProtocolError(f"{type(message).__name__} of {len(body)} bytes is over the limit of {MAX_FRAME_NBYTES}")
    return _LENGTH.pack(len(body)) + body


class Decoder(Generic[Heard]):
    """Cuts a byte stream into messages of `kinds` (HostMessage or AgentMessage)."""

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Heard] = msgspec.msgpack.Decoder(kinds)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Heard]:
        """The messages that `data` completes. Raises ProtocolError on anything else; the stream is then unusable."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, start)
                if length > MAX_FRAME_NBYTES:
                    raise ProtocolError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_NBYTES}")
                end = start + _LENGTH.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
                start = end
                yield self._decode(body)
        finally:
            del self._buffer[:start]

    def _decode(self, body: bytes) -> Heard:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"not a message: {error}") from error
