"""A host's end of a conversation, and an agent in a thread of this process to talk to."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ddlp.agent.channel import Channel
from ddlp.agent.protocol import AgentMessage, Begin, Decoder, Failed, Hello, Made, Make, Open, Opened, Welcome, encode
from ddlp.agent.server import Server
from ddlp.agent.store import FileStore, SlotStore
from ddlp.data.arrays import ArrayDataset
from ddlp.data.maker import Preparation
from ddlp.data.sampling import Plan
from ddlp.memory import Arena

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = 10


class Host:
    """Asks, and reads answers one by one."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(10)
        self.socket = end
        self._decoder = Decoder(AgentMessage)
        self._heard: list[Any] = []

    def say(self, *messages: Any) -> None:
        self.socket.sendall(b"".join(map(encode, messages)))

    def hear(self) -> Any:
        """The next message; None when the agent has hung up."""
        while not self._heard:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._heard += self._decoder.feed(data)
        return self._heard.pop(0)

    def is_quiet(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        self.socket.settimeout(seconds)
        try:
            return not self._heard and not self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10)

    def begin(self, opening: Open, plan: Plan) -> Opened:
        """Up to the first Make."""
        self.say(Hello(), opening, Begin(plan))
        assert isinstance(self.hear(), Welcome)
        opened = self.hear()
        assert isinstance(opened, Opened)
        return opened

    def make(self, ticket: int, index: int = 0, lo: int = 0, hi: int = ROWS, **place: int) -> Made | Failed:
        """Ask for a batch and read the answer."""
        self.say(Make(ticket, index, lo, hi, **place))
        return self.hear()


@pytest.fixture
def arrays(tmp_path: Path) -> ArrayDataset:
    """45 samples of random uint8 (6, 4, 3) and their number, in files."""
    pixels = np.random.default_rng(5).integers(0, 256, (45, 6, 4, 3), dtype=np.uint8)
    return ArrayDataset(pixels, np.arange(45)).saved(tmp_path / "data")


@pytest.fixture
def opening(arrays: ArrayDataset) -> Open:
    return Open(*Preparation(arrays).describe())


@pytest.fixture
def plan() -> Plan:
    return Plan(45, ROWS, drop_last=False, shuffle=True, seed=1, epoch=0)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    arena.close()


class Agent(threading.Thread):
    """A server in a thread; `error` is what it ended with."""

    def __init__(self, store: FileStore | Arena, options: dict[str, Any]) -> None:
        super().__init__()
        ours, self._end = socket.socketpair()
        self.host = Host(ours)
        channel = Channel(self._end.fileno(), self._end.fileno())
        make_store = (lambda grow: SlotStore(store.fd, grow)) if isinstance(store, Arena) else (lambda grow: store)
        self._server = Server(channel, make_store, **options)
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._server.serve()
        except BaseException as error:
            self.error = error
        finally:
            self._end.close()

    def end(self) -> BaseException | None:
        """Hang up, and wait for its end."""
        self.host.socket.close()
        self.join(10)
        assert not self.is_alive()
        return self.error


@pytest.fixture
def agent() -> Iterator[Callable[..., Agent]]:
    """Starts agents; all must have ended when the test is over."""
    agents: list[Agent] = []

    def start(store: FileStore | Arena, **options: Any) -> Agent:
        agents.append(Agent(store, options))
        return agents[-1]

    yield start
    for started in agents:
        started.end()


@pytest.fixture
def serve(agent: Callable[..., Agent]) -> Iterator[Callable[..., Host]]:
    """Starts agents that must end without an exception; returns their hosts."""
    agents: list[Agent] = []

    def start(store: FileStore | Arena, **options: Any) -> Host:
        agents.append(agent(store, **options))
        return agents[-1].host

    yield start
    assert [started.end() for started in agents] == [None] * len(agents)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a file store may live."""
    path = tmp_path / "store"
    path.mkdir()
    return path
