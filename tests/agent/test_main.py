"""The laws of the program: it speaks over standard streams too, keeps prints out of them, and ends as it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ddlp.agent.protocol import AgentMessage, Begin, Decoder, Hello, Made, Make, Open, Opened, Welcome, encode
from ddlp.data.sampling import Plan
from tests.agent.conftest import ROWS

pytestmark = pytest.mark.real

NOISY = """
from ddlp.agent.__main__ import main
from ddlp.data.maker import Maker
kernels = Maker.kernels
Maker.kernels = staticmethod(lambda: print("a library prints") or kernels())
main()
"""


class Talk:
    """A conversation over the standard streams of a process."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._decoder = Decoder(AgentMessage)
        self._heard: list = []

    def say(self, *messages) -> None:
        self.process.stdin.write(b"".join(map(encode, messages)))
        self.process.stdin.flush()

    def hear(self):
        while not self._heard:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._heard += self._decoder.feed(data)
        return self._heard.pop(0)


@pytest.fixture
def talk():
    """Starts agents; they must end at the end of their input."""
    talks: list[Talk] = []

    def start(*arguments: str) -> Talk:
        talks.append(Talk([*arguments] or ["-m", "ddlp.agent"]))
        return talks[-1]

    yield start
    for talk in talks:
        with talk.process as process:
            process.stdin.close()
            process.wait(10)


def test_it_serves_over_standard_streams(talk, opening, plan):
    """Without a socket, standard input and output are the conversation; end of file ends it and its store."""
    agent = talk()
    agent.say(Hello(), opening, Begin(plan), Make(1, 0, 0, ROWS))
    welcome, opened, made = agent.hear(), agent.hear(), agent.hear()
    assert isinstance(welcome, Welcome)
    assert welcome.pid == agent.process.pid
    assert isinstance(opened, Opened)
    assert isinstance(made, Made)
    assert os.path.exists(made.path)
    agent.process.stdin.close()
    assert agent.process.wait(10) == 0
    assert agent.hear() is None
    assert not os.path.exists(os.path.dirname(made.path))


def test_prints_do_not_get_into_the_conversation(talk, opening, plan):
    """What a library prints goes to standard error."""
    agent = talk("-c", NOISY)
    agent.say(Hello(), opening)
    assert isinstance(agent.hear(), Welcome)
    assert isinstance(agent.hear(), Opened)
    agent.process.stdin.close()
    assert agent.process.wait(10) == 0
    assert agent.process.stderr.read() == b"a library prints\n"


def test_terminating_it_empties_its_store(talk, folder, opening, plan):
    """SIGTERM, also while it waits, ends it without a word and takes its folder along; SIGINT does nothing."""
    agent = talk("-m", "ddlp.agent", "--slowdown=1e9", f"--folder={folder}")
    agent.say(Hello(), opening, Begin(plan), Make(1, 0, 0, ROWS))
    agent.hear()
    agent.hear()
    agent.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert agent.process.poll() is None
    assert list(folder.iterdir())
    agent.process.terminate()
    assert agent.process.wait(10) == 0
    assert agent.process.stderr.read() == b""
    assert not folder.exists()


def test_it_ends_when_its_parent_is_another(talk, folder):
    """An agent whose parent has ended before it could ask to be told so ends at once, and leaves nothing."""
    agent = talk("-m", "ddlp.agent", f"--parent={os.getppid()}", f"--folder={folder}")
    assert agent.process.wait(10) == 0
    assert not folder.exists()


def test_it_keeps_to_its_cores(talk):
    """--cpus confines it."""
    core = min(os.sched_getaffinity(0))
    agent = talk("-m", "ddlp.agent", f"--cpus={core}")
    agent.say(Hello())
    agent.hear()
    assert os.sched_getaffinity(agent.process.pid) == {core}


def test_its_store_is_where_it_was_told(talk, folder, opening, plan):
    """--folder and --store-bytes are the store; a batch over the bound is refused."""
    agent = talk("-m", "ddlp.agent", f"--folder={folder}", "--store-bytes=100")
    agent.say(Hello(), opening, Begin(plan), Make(1, 0, 0, ROWS))
    assert [type(agent.hear()).__name__ for _ in range(3)] == ["Welcome", "Opened", "Failed"]
    agent.process.stdin.close()
    assert agent.process.wait(10) == 0
    assert not folder.exists()


def test_it_needs_no_torch(talk, opening):
    """Starting, opening and making batches imports no torch and no asyncio."""
    agent = talk("-X", "importtime", "-m", "ddlp.agent")
    agent.say(Hello(), opening, Begin(Plan(45, ROWS, False, False, 0, 0)), Make(1, 0, 0, ROWS))
    for _ in range(3):
        agent.hear()
    agent.process.stdin.close()
    imported = {line.rsplit(b"|", 1)[1].strip() for line in agent.process.stderr if b"|" in line}
    assert b"numpy" in imported
    assert not imported & {b"torch", b"asyncio", b"multiprocessing.spawn", b"structlog"}


def test_what_was_opened_by_pickle_needs_a_pickle(talk):
    """An agent to which no job was handed over says so."""
    agent = talk()
    agent.say(Open(python=True))
    failed = agent.hear()
    assert failed.ticket == 0
    assert "no job was handed over" in failed.message
