"""The agent's end of the conversation: messages over two file descriptors, without threads and without asyncio."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from ddlp.agent.protocol import Decoder, Failed, HostMessage, encode
from ddlp.errors import ProtocolError

if TYPE_CHECKING:
    from ddlp.agent.protocol import AgentMessage

_READ_NBYTES = 1 << 18


class HangUp(BaseException):
    """The host is gone. Not an Exception, so that nothing that is busy with a sample takes it for a bad sample."""


class Channel:
    """Receives from the descriptor `reading` and sends to `writing`, which may be one socket or two pipes."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._decoder: Decoder[HostMessage] = Decoder(HostMessage)
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[HostMessage]:
        """What has come; waits for `timeout_s` seconds (None: for ever) when there is nothing. May be empty.

        Raises:
            HangUp: the host closed its end.
            ProtocolError: the host sent something else.
        """
        if not self._poll.poll(None if timeout_s is None else timeout_s * 1e3):
            return []
        try:
            data = os.read(self._reading, _READ_NBYTES)
        except ConnectionError as error:
            raise HangUp from error
        if not data:
            raise HangUp
        return list(self._decoder.feed(data))

    def send(self, message: AgentMessage) -> None:
        """Send it, or a failure in place of an answer that is larger than a frame may be. Raises HangUp."""
        frame = memoryview(_encoded(message))
        try:
            while frame:
                frame = frame[os.write(self._writing, frame) :]
        except ConnectionError as error:  # BrokenPipeError is one
            raise HangUp from error


def _encoded(message: AgentMessage) -> bytes:
    try:
        return encode(message)
    except ProtocolError as error:
        return encode(Failed(getattr(message, "ticket", 0), "data", f"the answer does not fit: {error}"))
