"""The host's end of the conversation with one agent, wherever that runs."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from typing import TYPE_CHECKING, Any, cast

from ddlp.agent.protocol import (
    VERSION,
    AgentMessage,
    Begin,
    Decoder,
    Failed,
    Forget,
    Grant,
    Hello,
    Made,
    Make,
    Need,
    Open,
    Opened,
    Welcome,
    encode,
)
from ddlp.errors import BatchFailed, DataError, DdlpError, DeviceLost, ProtocolError, SampleError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlp.agent.protocol import HostMessage
    from ddlp.data.sampling import ListedPlan, Plan
    from ddlp.memory import Slot


class Ask:
    """One Make under way.

    `answer` is done once the agent has answered and so touches `slot` no more; nothing ever cancels it. `slot` is where
    the batch goes, which the agent may have exchanged for a larger one; None where the agent has its own store.
    """

    __slots__ = ("answer", "slot", "ticket", "wanted")

    def __init__(self, ticket: int, slot: Slot | None) -> None:
        self.ticket = ticket
        self.slot = slot
        self.answer: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self.wanted = True


class Connection(asyncio.Protocol):
    """Messages to and from one agent; `name` is how errors call it.

    lease    gives a larger slot when a batch without a fixed form needs one
    lost     called when the agent has closed its end; whoever started the agent then says why, with `lose`
    trusted  the agent is this process's own child, so what it pickled may be unpickled
    """

    def __init__(
        self,
        name: str,
        *,
        lost: Callable[[], None],
        lease: Callable[[int], Slot] | None = None,
        trusted: bool = False,
    ) -> None:
        self.name = name
        self.late = 0  # answers to what had been given up
        self._lease = lease
        self._lost = lost
        self._trusted = trusted
        self._transport: asyncio.Transport | None = None
        self._decoder: Decoder[AgentMessage] = Decoder(AgentMessage)
        self._tickets = itertools.count(1)
        self._asks: dict[int, Ask] = {}  # by ticket, and so in the order in which they were asked
        self._plan: Plan | ListedPlan | None = None  # the last that the agent was told
        self.why_lost: DdlpError | None = None
        loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[Welcome] = loop.create_future()
        self._opened: asyncio.Future[Opened] = loop.create_future()

    # --- asking ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the agent has said that it opened the data set."""
        return self._opened.done() and self._opened.exception() is None and self.why_lost is None

    @property
    def busy(self) -> int:
        """How many Makes it has not answered."""
        return len(self._asks)

    def greet(self, message: Open) -> None:
        """Introduce ourselves, and have the agent open the data set."""
        self._send(Hello(VERSION))
        self._send(message)

    async def opened(self) -> tuple[Welcome, Opened]:
        """What the agent answered to `greet`.

        Raises:
            DataError: the agent cannot use the data set.
            DeviceLost: it ended, or speaks another version of the protocol.
        """
        welcome = await asyncio.shield(self._welcome)
        if welcome.version != VERSION:
            raise DeviceLost(f"{self.name}: the agent speaks version {welcome.version} of the protocol, not {VERSION}")
        return welcome, await asyncio.shield(self._opened)

    def make(self, plan: Plan | ListedPlan, index: int, lo: int, hi: int, slot: Slot | None) -> Ask:
        """Ask for rows lo..hi of batch `index` of `plan`, in its place in `slot`."""
        if plan is not self._plan:
            self._plan = plan
            self._send(Begin(plan))
        ask = Ask(next(self._tickets), slot)
        self._asks[ask.ticket] = ask
        offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
        self._send(Make(ask.ticket, index, lo, hi, offset, capacity))
        return ask

    def forget(self, ask: Ask) -> None:
        """Give it up, or discard what the agent keeps of it. Its `answer` still comes when the agent has let go."""
        ask.wanted = False
        self._send(Forget(ask.ticket))

    def lose(self, error: DdlpError) -> None:
        """The agent is gone: whatever is asked of it fails with `error`. Only the first call counts."""
        if self.why_lost is not None:
            return
        self.why_lost = error
        self.hang_up()
        _fail(self._welcome, error)
        _fail(self._opened, error)
        asks, self._asks = self._asks, {}
        for ask in asks.values():
            _fail(ask.answer, error)

    def hang_up(self) -> None:
        """Close our end, so that the agent ends."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _send(self, message: HostMessage) -> None:
        if self._transport is not None:
            self._transport.write(encode(message))

    # --- hearing -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._hear(message)
        except ProtocolError as error:
            self.lose(DeviceLost(f"{self.name}: {error}"))

    def _hear(self, message: AgentMessage) -> None:
        match message:
            case Welcome():
                _give(self._welcome, message)
            case Opened():
                _give(self._opened, message)
            case Failed(ticket=0):
                _fail(self._opened, self._with_origin(DataError(f"{self.name}: {message.message}"), message))
            case Need():
                self._grow(message)
            case _:
                self._answered(message)

    def _grow(self, need: Need) -> None:
        ask = self._asks.get(need.ticket)
        if ask is None or self._lease is None:
            raise ProtocolError(f"nobody asked for what needs {need.nbytes} bytes")
        if ask.wanted:
            ask.slot = self._lease(need.nbytes)
            self._send(Grant(need.ticket, ask.slot.offset, ask.slot.capacity))

    def _answered(self, message: Made | Failed) -> None:
        ask = self._asks.pop(message.ticket, None)
        if ask is None:
            self.late += 1
            return
        for ticket in [ticket for ticket in self._asks if ticket < message.ticket]:
            _fail(self._asks.pop(ticket).answer, BatchFailed(f"{self.name}: the answer was lost"))
        if isinstance(message, Made):
            self.late += not ask.wanted
            ask.answer.set_result(message)
        else:
            _fail(ask.answer, self._error(message))

    def _error(self, failed: Failed) -> DdlpError:
        if failed.kind == "data":
            return self._with_origin(SampleError(failed.message, failed.sample_id, failed.path), failed)
        kind = StoreFull if failed.kind == "full" else BatchFailed
        return self._with_origin(kind(f"{self.name}: {failed.message}"), failed)

    def _with_origin(self, error: DdlpError, failed: Failed) -> DdlpError:
        """`error` with what the agent says of its origin: its traceback and, from our own child, the exception."""
        if failed.traceback:
            error.add_note(f"In {self.name}:\n{failed.traceback}")
        if self._trusted and failed.exception is not None:
            error.__cause__ = _unpickled(failed.exception)
        return error


def _unpickled(data: bytes) -> BaseException | None:
    try:
        original = pickle.loads(data)
    except Exception:  # an exception whose class cannot be built from its args; the traceback tells all the same
        return None
    return original if isinstance(original, BaseException) else None


def _give(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: DdlpError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: nobody need look at it
