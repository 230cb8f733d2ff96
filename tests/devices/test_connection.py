"""The laws of the host's end: what an agent may say, what becomes of it, and whom it may not fool."""

from __future__ import annotations

import asyncio
import pickle
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from ddlp.agent.protocol import Decoder, Failed, HostMessage, Made, Need, Open, Opened, Welcome, encode
from ddlp.data.sampling import Plan
from ddlp.devices.connection import Connection
from ddlp.errors import BatchFailed, ClosedError, DataError, DeviceLost, SampleError, StoreFull

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ddlp.memory import Arena

PLAN = Plan(40, 10, False, False, 0, 0)


class Agent:
    """The other end: says what a test wants it to say."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._decoder = Decoder(HostMessage)
        self.heard: list[Any] = []

    async def say(self, *messages: Any) -> None:
        self.socket.sendall(b"".join(map(encode, messages)))
        await self.settle()

    async def settle(self) -> None:
        """Until both ends have heard what was said."""
        for _ in range(5):
            await asyncio.sleep(0.001)
        with suppress(BlockingIOError):
            self.heard += self._decoder.feed(self.socket.recv(1 << 16))


@asynccontextmanager
async def talk(**options: Any) -> AsyncIterator[tuple[Connection, Agent, list[str]]]:
    """A connection, the agent at its other end, and a list that grows when the agent hangs up."""
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    connection = Connection("csd0", lost=lambda: lost.append("lost"), **options)
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
    with theirs:
        yield connection, Agent(theirs), lost
    connection.hang_up()
    await asyncio.sleep(0.01)


def test_the_plan_goes_ahead_of_its_first_batch(run):
    """Begin is sent once per plan, before the first Make of it; tickets only grow."""

    async def main() -> None:
        async with talk() as (connection, agent, _):
            connection.make(PLAN, 0, 0, 10, None)
            connection.make(PLAN, 1, 0, 10, None)
            connection.make(Plan(40, 10, False, False, 0, 1), 0, 0, 10, None)
            await agent.settle()
            kinds = [type(message).__name__ for message in agent.heard]
            assert kinds == ["Begin", "Make", "Make", "Begin", "Make"]
            assert [message.ticket for message in agent.heard if hasattr(message, "ticket")] == [1, 2, 3]

    run(main())


def test_a_later_answer_fails_the_earlier_asks(run):
    """Answers come in order, so whatever is skipped was lost, and fails at once."""

    async def main() -> None:
        async with talk() as (connection, agent, _):
            asks = [connection.make(PLAN, index, 0, 10, None) for index in range(4)]
            await agent.say(Made(3, 100))
            for ask in asks[:2]:
                with pytest.raises(BatchFailed, match="csd0: the answer was lost"):
                    ask.answer.result()
            assert asks[2].answer.result() == Made(3, 100)
            assert not asks[3].answer.done()
            assert connection.busy == 1

    run(main())


def test_answers_that_nobody_waits_for_are_counted(run):
    """Unknown tickets, second answers, and answers to what was given up change nothing but the count."""

    async def main() -> None:
        async with talk() as (connection, agent, _):
            ask = connection.make(PLAN, 0, 0, 10, None)
            await agent.say(Made(1, 100), Made(1, 100), Made(77, 1), Failed(78, "device", ""))
            assert connection.late == 3
            given_up = connection.make(PLAN, 0, 0, 10, None)
            connection.forget(given_up)
            await agent.say(Made(2, 100))
            assert connection.late == 4
            assert ask.answer.result() == Made(1, 100)
            assert given_up.answer.done()

    run(main())


@pytest.mark.parametrize(
    ("kind", "error"), [("data", SampleError), ("full", StoreFull), ("device", BatchFailed), ("forgotten", BatchFailed)]
)
def test_failures_become_the_errors_of_the_contract(run, kind, error):
    """Each kind of failure is one error, and the agent's traceback is a note of it."""

    async def main() -> None:
        async with talk() as (connection, agent, _):
            ask = connection.make(PLAN, 0, 0, 10, None)
            await agent.say(Failed(1, kind, "it went wrong", 7, "/a.jpg", "Traceback of the agent"))
            with pytest.raises(error, match="it went wrong") as caught:
                ask.answer.result()
            assert type(caught.value) is error
            assert caught.value.__notes__ == ["In csd0:\nTraceback of the agent"]

    run(main())


class Trap:
    """Says so when it is unpickled."""

    sprung = False

    def __reduce__(self) -> Any:
        return spring, ()


def spring() -> Exception:
    Trap.sprung = True
    return KeyError("original")


@pytest.mark.parametrize("trusted", [True, False])
def test_pickles_are_read_from_our_own_children_alone(run, trusted):
    """A foreign agent's bytes are never unpickled; a child's exception becomes the cause."""
    Trap.sprung = False

    async def main() -> None:
        async with talk(trusted=trusted) as (connection, agent, _):
            ask = connection.make(PLAN, 0, 0, 10, None)
            await agent.say(Failed(1, "data", "bad", exception=pickle.dumps(Trap())))
            assert isinstance(ask.answer.exception().__cause__, KeyError) is trusted

    run(main())
    assert Trap.sprung is trusted


def test_a_larger_slot_is_granted(run, arena: Arena):
    """Need is answered with a slot of the arena, which the ask then holds; not when it was given up."""

    async def main() -> None:
        async with talk(lease=arena.lease) as (connection, agent, _):
            small = arena.lease(10)
            ask = connection.make(PLAN, 0, 0, 10, small)
            given_up = connection.make(PLAN, 1, 0, 10, arena.lease(10))
            connection.forget(given_up)
            await agent.say(Need(1, 50_000), Need(2, 50_000))
            assert ask.slot is not small
            assert ask.slot.capacity >= 50_000
            grant = agent.heard[-1]
            assert (grant.ticket, grant.offset, grant.capacity) == (1, ask.slot.offset, ask.slot.capacity)

    run(main())


@pytest.mark.parametrize(
    "said", [b"\x03\x00\x00\x00???", b"\xff\xff\xff\xff", encode(Need(5, 1 << 40)), encode(Open())]
)
def test_a_peer_that_does_not_speak_the_protocol_is_lost(run, said):
    """Garbage, frames over the limit, a need of what nobody asked, a host's message: each ends the connection."""

    async def main() -> None:
        async with talk() as (connection, agent, lost):
            ask = connection.make(PLAN, 0, 0, 10, None)
            agent.socket.sendall(said)
            await agent.settle()
            with pytest.raises(DeviceLost, match="csd0: "):
                ask.answer.result()
            assert lost == ["lost"]
            connection.forget(ask)  # nobody hears it, and that is fine

    run(main())


def test_the_first_reason_for_a_loss_is_the_one(run):
    """Everything asked fails with it; later reasons change nothing."""

    async def main() -> None:
        async with talk() as (connection, _, _):
            ask = connection.make(PLAN, 0, 0, 10, None)
            connection.lose(DeviceLost("first"))
            connection.lose(ClosedError("second"))
            assert str(ask.answer.exception()) == "first"
            with pytest.raises(DeviceLost, match="first"):
                await connection.opened()

    run(main())


def test_opening_tells_what_the_agent_found(run):
    """`opened` waits for both answers; a failure at ticket 0 is the data's, another version is a lost device."""

    async def main() -> None:
        opened = Opened(40, "f", None)
        async with talk() as (connection, agent, _):
            connection.greet(Open())
            await agent.say(Welcome(1, 2, {}), opened)
            assert connection.is_open
            assert await connection.opened() == (Welcome(1, 2, {}), opened)
        async with talk() as (connection, agent, _):
            await agent.say(Welcome(1, 2, {}), Failed(0, "device", "no such folder"))
            with pytest.raises(DataError, match="csd0: no such folder"):
                await connection.opened()
        async with talk() as (connection, agent, _):
            await agent.say(Welcome(99, 2, {}), opened)
            with pytest.raises(DeviceLost, match="speaks version 99 of the protocol, not 1"):
                await connection.opened()

    run(main())
