"""The laws of the protocol: what is said arrives, however it is cut, and nothing else is taken for it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlp.agent.protocol import (
    CHECKED_NBYTES,
    MAX_FRAME_NBYTES,
    AgentMessage,
    Begin,
    Decoder,
    Failed,
    Forget,
    Grant,
    Hello,
    HostMessage,
    Made,
    Make,
    Need,
    Open,
    Opened,
    Welcome,
    checksums,
    encode,
)
from ddlp.data.sampling import Plan, listed
from ddlp.errors import ProtocolError
from ddlp.types import Field, Layout, Leaf

HOST = [
    Hello(),
    Open(b"{}", b"null"),
    Open(python=True),
    Begin(Plan(100, 8, False, True, 7, 3, 1, 2)),
    Begin(listed([[1, 2], [3]], 7, 0)),
    Make(5, 6, 0, 8, 4096, 8192),
    Grant(5, 4096, 100_000),
    Forget(5),
]
AGENT = [
    Welcome(1, 99, {"pillow": "13.0"}),
    Opened(10, "0123456789abcdef", None),
    Opened(10, "", Layout((Field("image", "uint8", (3, 4, 5)),))),
    Made(5, 60, 0.1, 0.05, "/tmp/b5.safetensors", 4096, (17, 18)),
    Made(6, 12, leaves=(Leaf("float32", (3,), 0),), skeleton=b"\x80"),
    Need(6, 1 << 40),
    Failed(7, "data", "it is bad", 3, "/a/b.jpg", "Traceback", b"pickle"),
]


@pytest.mark.parametrize(("kinds", "messages"), [(HostMessage, HOST), (AgentMessage, AGENT)])
@given(data=st.data())
def test_messages_arrive_however_they_are_cut(kinds, messages, data):
    """Any sequence of messages, cut anywhere, comes out equal and in order."""
    said = data.draw(st.lists(st.sampled_from(messages), max_size=8))
    stream = b"".join(map(encode, said))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder, heard = Decoder(kinds), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += decoder.feed(stream[start:end])
    assert heard == said


@pytest.mark.parametrize(
    ("kinds", "message"),
    [*((AgentMessage, message) for message in HOST), *((HostMessage, message) for message in AGENT)],
)
def test_each_side_accepts_only_the_other_sides_messages(kinds, message):
    """An agent cannot give orders, and a host cannot give answers."""
    with pytest.raises(ProtocolError, match="not a message"):
        list(Decoder(kinds).feed(encode(message)))


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_incomplete(data):
    """Whatever bytes come, the decoder raises ProtocolError, waits for more, or finds a message of its kind."""
    decoder = Decoder(HostMessage)
    try:
        messages = list(decoder.feed(data))
    except ProtocolError:
        return
    assert all(isinstance(message, HostMessage) for message in messages)


def test_frames_are_bounded_on_both_ends():
    """A frame over the limit is refused before it is sent, and before its bytes are waited for."""
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(Open(bytes(MAX_FRAME_NBYTES), b""))
    with pytest.raises(ProtocolError, match="over the limit"):
        list(Decoder(HostMessage).feed(struct.pack("<I", MAX_FRAME_NBYTES + 1)))


def test_wrong_field_types_are_refused():
    """A message whose fields have other types than declared is no message."""
    frame = encode(Forget(5)).replace(b"\xa6ticket\x05", b"\xa6ticket\xc0")
    with pytest.raises(ProtocolError, match=r"Expected `int`, got `None`.*ticket"):
        list(Decoder(HostMessage).feed(frame))


@given(st.integers(0, 3), st.integers(-2, 2))
def test_every_byte_is_under_a_checksum(parts, more):
    """There is one checksum for each part, the short last one included, and any changed byte changes one."""
    payload = bytearray(max(0, parts * CHECKED_NBYTES + more))
    before = checksums(memoryview(payload))
    assert len(before) == -(-len(payload) // CHECKED_NBYTES)
    for at in {0, len(payload) // 2, len(payload) - 1} if payload else set():
        payload[at] ^= 1
        changed = [
            part for part, (a, b) in enumerate(zip(before, checksums(memoryview(payload)), strict=True)) if a != b
        ]
        assert changed == [at // CHECKED_NBYTES]
        payload[at] ^= 1
