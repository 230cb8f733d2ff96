"""The laws of the agent: every Make is answered once and in order, Forget takes effect at once, nothing is left."""

from __future__ import annotations

import pickle
import struct
import time

import pytest

from ddlp.agent.faults import Faults
from ddlp.agent.protocol import VERSION, Begin, Failed, Forget, Grant, Hello, Made, Make, Need, Open, Welcome
from ddlp.agent.server import Pace
from ddlp.agent.store import FileStore
from ddlp.data.maker import Maker, Preparation
from ddlp.data.sampling import Plan
from ddlp.errors import SampleError
from ddlp.memory import view
from tests.agent.conftest import ROWS

PLAN = Plan(40, ROWS, drop_last=False, shuffle=False, seed=0, epoch=0)


class Slow:
    """Sample i is i, after a moment."""

    seconds = 0.01

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


class Slower(Slow):
    """Sample i is i, after a while."""

    seconds = 0.05


class Bad(Slow):
    """Sample 3 raises."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise KeyError("three")
        return index


class Exiting(Slow):
    """Sample 3 wants to end the process."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise SystemExit(4)
        return index


def python(dataset: object) -> dict:
    """Options of an agent to which `dataset` was handed over."""
    return {"job": lambda: Preparation(dataset)}


# --- conversation ----------------------------------------------------------------------------------------------------


def test_the_greeting_names_version_process_and_libraries(serve, folder):
    """Welcome says which protocol, which process, and which versions make the pixels."""
    host = serve(FileStore(str(folder)))
    host.say(Hello())
    welcome = host.hear()
    assert welcome == Welcome(VERSION, welcome.pid, Maker.kernels())


def test_opened_describes_what_the_agent_sees(serve, folder, opening, plan, arrays):
    """Samples, fingerprint and layout are those of the agent's own copy."""
    opened = serve(FileStore(str(folder))).begin(opening, plan)
    ours = Preparation(arrays)
    assert (opened.samples, opened.fingerprint, opened.layout) == (45, ours.fingerprint, ours.layout)


@pytest.mark.parametrize("opening", [Open(b"{}", b"null"), Open(b"not json", b"null"), Open(python=True)])
def test_what_cannot_be_opened_fails_and_the_agent_goes_on(serve, folder, opening):
    """A bad Open is answered with Failed for ticket 0, and another one may follow."""
    host = serve(FileStore(str(folder)))
    for _ in range(2):
        host.say(opening)
        failed = host.hear()
        assert isinstance(failed, Failed)
        assert failed.ticket == 0
        assert failed.exception is None


@pytest.mark.parametrize("message", [Begin(PLAN), Make(1, 0, 0, ROWS)])
def test_messages_out_of_order_end_the_agent(agent, folder, message):
    """What makes no sense yet is a broken host: the agent hangs up, and its store is gone."""
    started = agent(FileStore(str(folder)))
    started.host.say(message)
    assert started.host.hear() is None
    assert "out of order" in str(started.end())
    assert not folder.exists()


def test_garbage_ends_the_agent(agent, folder):
    """Bytes that are not the protocol end the conversation."""
    started = agent(FileStore(str(folder)))
    started.host.socket.sendall(struct.pack("<I", 3) + b"???")
    assert started.host.hear() is None
    assert "not a message" in str(started.end())


def test_hanging_up_empties_the_store(serve, folder, opening, plan):
    """When the host goes, in the middle of a batch too, the folder goes."""
    host = serve(FileStore(str(folder)), slowdown=1e6)
    host.begin(opening, plan)
    host.say(Make(1, 0, 0, ROWS))
    time.sleep(0.05)
    host.socket.close()
    end = time.monotonic() + 5
    while folder.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


# --- slots -----------------------------------------------------------------------------------------------------------


def test_parts_of_a_batch_meet_in_one_slot(serve, arena, opening, plan, arrays):
    """Rows that different agents make into the same place are the whole batch; no row is written twice."""
    layout = Preparation(arrays).layout
    slot = arena.lease(layout.nbytes(ROWS))
    slot.memory[:] = bytes(slot.capacity)
    place = {"index": 2, "offset": slot.offset, "capacity": slot.capacity}
    hosts = [serve(arena) for _ in range(2)]
    for host, (lo, hi) in zip(hosts, ((0, 3), (7, ROWS)), strict=True):
        host.begin(opening, plan)
        made = host.make(1, lo=lo, hi=hi, **place)
        assert isinstance(made, Made)
        assert made.nbytes == layout.nbytes(hi - lo)
    pixels, numbers = slot.arrays(layout.leaves(ROWS))
    assert numbers[3:7].tolist() == [0] * 4
    hosts[0].make(2, lo=3, hi=7, **place)
    assert numbers.tolist() == plan.ids(2).tolist()
    assert (pixels == arrays.arrays[0][plan.ids(2)]).all()


def test_a_batch_without_a_form_asks_for_the_room_that_it_needs(serve, arena):
    """When the place is too small the agent says how much it needs, and goes on where it is granted."""
    host = serve(arena, **python(Slow()))
    host.begin(Open(python=True), PLAN)
    need = host.make(1, offset=0, capacity=8)
    assert need == Need(1, 128)
    slot = arena.lease(need.nbytes)
    host.say(Grant(1, slot.offset, slot.capacity))
    made = host.hear()
    assert view(slot.memory, made.leaves[0]).tolist() == list(range(ROWS))


def test_waiting_for_room_can_be_given_up(serve, arena):
    """A batch that waits for a larger place is forgotten at once, even when the grant is under way."""
    host = serve(arena, **python(Slow()))
    host.begin(Open(python=True), PLAN)
    for ticket in (1, 3):
        assert isinstance(host.make(ticket, offset=0, capacity=8), Need)
        if ticket == 3:
            slot = arena.lease(128)
            host.say(Forget(ticket), Grant(ticket, slot.offset, slot.capacity))
        else:
            host.say(Forget(ticket))
        assert host.hear().kind == "forgotten"
    slot = arena.lease(128)
    assert isinstance(host.make(4, offset=slot.offset, capacity=slot.capacity), Made)


# --- order and forgetting --------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_questions(serve, arena):
    """Also when some were forgotten meanwhile, each Make has one answer, in its turn."""
    host = serve(arena, **python(Slow()))
    host.begin(Open(python=True), PLAN)
    slot = arena.lease(128)
    host.say(*(Make(ticket, 0, 0, ROWS, slot.offset, slot.capacity) for ticket in range(1, 7)))
    host.say(Forget(2), Forget(5), Forget(5), Forget(77))
    answers = [host.hear() for _ in range(6)]
    assert [answer.ticket for answer in answers] == [1, 2, 3, 4, 5, 6]
    assert [isinstance(answer, Made) for answer in answers] == [True, False, True, True, False, True]
    assert host.is_quiet(0.05)


def test_forget_stops_the_work_between_samples(serve, arena):
    """The batch that is being made ends after the current sample."""
    host = serve(arena, **python(Slower()))
    host.begin(Open(python=True), PLAN)
    slot = arena.lease(128)
    host.say(Make(1, 0, 0, ROWS, slot.offset, slot.capacity))
    time.sleep(0.02)
    begun = time.monotonic()
    host.say(Forget(1))
    assert host.hear().kind == "forgotten"
    assert time.monotonic() - begun < 0.3


def test_forget_ends_the_wait_of_a_slow_device(serve, folder, opening, plan):
    """A finished batch that is not due yet is removed at once when nobody wants it."""
    host = serve(FileStore(str(folder)), slowdown=1e6)
    host.begin(opening, plan)
    host.say(Make(1, 0, 0, ROWS))
    assert host.is_quiet(0.1)
    host.say(Forget(1))
    assert host.hear().kind == "forgotten"
    assert not list(folder.glob("b*"))


def test_a_new_epoch_waits_for_the_batches_before_it(serve, arena):
    """Begin applies to the Makes behind it and to none before it."""
    host = serve(arena, **python(Slow()))
    host.begin(Open(python=True), PLAN)
    slot = arena.lease(128)
    later = Plan(40, ROWS, drop_last=False, shuffle=True, seed=0, epoch=1)
    make = [Make(ticket, 0, 0, ROWS, slot.offset, slot.capacity) for ticket in (1, 2)]
    host.say(make[0], Begin(later), make[1])
    for expected in (PLAN, later):
        leaf = host.hear().leaves[0]
        assert expected is later or view(slot.memory, leaf).tolist() == PLAN.ids(0).tolist()
    assert view(slot.memory, leaf).tolist() == later.ids(0).tolist()


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_sample_that_raises_is_the_datas_fault(serve, arena):
    """Failed names the sample, shows the traceback, and carries the exception of a job that was handed over."""
    host = serve(arena, **python(Bad()))
    host.begin(Open(python=True), PLAN)
    failed = host.make(1)
    assert (failed.kind, failed.sample_id) == ("data", 3)
    assert "in __getitem__" in failed.traceback
    assert isinstance(pickle.loads(failed.exception), KeyError)
    slot = arena.lease(128)
    assert isinstance(host.make(2, 1, offset=slot.offset, capacity=slot.capacity), Made)


def test_a_sample_cannot_end_the_agent(serve, arena):
    """SystemExit of a data set is an answer like any other exception."""
    host = serve(arena, **python(Exiting()))
    host.begin(Open(python=True), PLAN)
    assert host.make(1).message == "SystemExit: 4"
    slot = arena.lease(128)
    assert isinstance(host.make(2, 1, offset=slot.offset, capacity=slot.capacity), Made)


def test_an_error_of_ours_is_the_devices_fault(serve, folder, opening, plan, monkeypatch):
    """What fails without a user's Python is not blamed on the data, and sends no pickle."""
    host = serve(FileStore(str(folder)))
    host.begin(opening, plan)
    monkeypatch.setattr(Maker, "make", lambda *_: 1 / 0)
    failed = host.make(1)
    assert (failed.kind, failed.message, failed.exception) == ("device", "ZeroDivisionError: division by zero", None)
    monkeypatch.setattr(Maker, "make", lambda *_: bytearray(1 << 62))
    assert host.make(2).kind == "full"
    assert not list(folder.glob("b*"))


def test_a_sample_error_without_cause_travels_itself(serve, arena, monkeypatch):
    """The original of an error that has no deeper one is the error."""
    host = serve(arena, **python(Slow()))
    host.begin(Open(python=True), PLAN)

    def fail(*_: object) -> None:
        raise SampleError("bad", 3, "/x.jpg")

    monkeypatch.setattr(Maker, "collect", fail)
    failed = host.make(1)
    assert (failed.message, failed.sample_id, failed.path) == ("bad", 3, "/x.jpg")
    assert isinstance(pickle.loads(failed.exception), SampleError)


# --- faults and pace -------------------------------------------------------------------------------------------------


def test_faults_are_keyed_by_batches_made(serve, folder, opening, plan):
    """The n-th batch of the agent's life has the fault, whatever its index or ticket."""
    faults = Faults(lose_answer_at=(1,), duplicate_answer_at=(2,), full_at=(3,))
    host = serve(FileStore(str(folder)), faults=faults)
    host.begin(opening, plan)
    host.say(*(Make(ticket, ticket - 10, 0, 5 if ticket == 14 else ROWS) for ticket in range(10, 15)))
    answers = [host.hear() for _ in range(5)]
    assert [answer.ticket for answer in answers] == [10, 12, 12, 13, 14]
    assert [answer.kind for answer in answers if isinstance(answer, Failed)] == ["full"]


@pytest.mark.parametrize(
    ("slow_at", "expected"),
    [({}, [1, 1, 1, 1]), ({0: 3}, [3, 3, 3, 3]), ({1: 2, 3: 1}, [1, 2, 2, 1])],
)
def test_slowness_holds_until_the_next_entry(slow_at, expected):
    """slow_at is a step function of the batch's number."""
    assert [Faults(slow_at=slow_at).slowdown(number) for number in range(4)] == expected


def test_the_pace_is_that_of_the_work():
    """Batches are due at `slowdown` times their CPU time, one after the other, without the time that waiting adds."""
    pace = Pace(4.0)
    assert pace.due(100.0, 1.0, 1.0) == 104.0
    assert pace.due(104.5, 1.0, 1.0) == 108.0
    assert pace.due(108.5, 1.0, 2.0) == 116.0
    pace.idle()
    assert pace.due(200.0, 0.5, 1.0) == 202.0


def test_a_device_as_fast_as_a_core_never_waits():
    """Without a slowdown a batch is due when it is done, even where several threads used more CPU than wall time."""
    pace = Pace(1.0)
    assert pace.due(100.0, 50.0, 1.0) == 100.0
    assert pace.due(100.0, 50.0, 1.0) == 100.0
