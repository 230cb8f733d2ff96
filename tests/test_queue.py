"""The laws of the dual-ended queue, against a model that keeps plain sets and lists."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ddlp.errors import IllegalMove, StaleTicket, UsageError
from ddlp.queue import DualEndedQueue, Place
from ddlp.types import HEAD, TAIL, BatchRef, Claim, Side

SIDES = st.sampled_from(Side)


def made(claim: Claim) -> BatchRef:
    return BatchRef(claim, "device", None, (), 1)


def snapshot(queue: DualEndedQueue) -> object:
    """Everything that can be asked of a queue."""
    sides = [(queue.is_ready(side), queue.left(side), queue.unfinished(side)) for side in Side]
    return queue.view(), queue.state(), queue.finished, queue.boundary, repr(queue), sides


def refuse(queue: DualEndedQueue, move: str, claim: Claim, error: type[IllegalMove], *words: str) -> None:
    """The move raises `error` with all the words, and changes nothing."""
    before = snapshot(queue)
    arguments = {"ready": (made(claim),), "release": ("no reason",)}.get(move, ())
    with pytest.raises(IllegalMove) as caught:
        getattr(queue, move)(claim, *arguments)
    assert type(caught.value) is error
    assert all(word in str(caught.value) for word in (str(claim.index), claim.side.name.lower(), *words))
    assert snapshot(queue) == before


def drained(queue: DualEndedQueue) -> list[int]:
    """Every index that the queue still gives, used at once."""
    order = []
    while (claim := queue.claim(HEAD) or queue.claim(TAIL)) is not None:
        queue.ready(claim, made(claim))
        while (ref := queue.take(claim.side)) is not None:
            order.append(ref.claim.index)
            queue.settle(ref.claim)
    return order


class QueueAgainstModel(RuleBasedStateMachine):
    """All moves in any order. The model: open indices, released ones by side, claims in order with their places."""

    @initialize(n=st.integers(0, 12), boundary=st.none() | st.integers(-2, 14))
    def begin(self, n: int, boundary: int | None) -> None:
        self.n = n
        self.queue = DualEndedQueue(n, boundary)
        self.fresh = set(range(n))
        self.met = n
        self.returned: dict[Side, set[int]] = {HEAD: set(), TAIL: set()}
        self.places: dict[Claim, Place] = {}  # in claim order
        self.settled: set[int] = set()
        self.void: list[Claim] = []
        self.lost: set[Side] = set()
        self.last_ticket = 0
        self.boundary = None if boundary is None else self.clamped(boundary)

    # --- moves -------------------------------------------------------------------------------------------------------

    @rule(side=SIDES)
    def claim(self, side: Side) -> None:
        claim = self.queue.claim(side)
        expected = self.next_index(side)
        assert (claim and claim.index) == expected
        if claim is None:
            return
        assert claim.side is side
        assert claim.ticket > self.last_ticket
        self.last_ticket = claim.ticket
        if claim.index in self.fresh:
            self.fresh.remove(claim.index)
            self.met = claim.index + (side is HEAD)
        else:
            self.returned[side].remove(claim.index)
        self.places[claim] = Place.CLAIMED

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(list(self.places)))
        if self.places[claim] is Place.CLAIMED:
            self.queue.ready(claim, made(claim))
            self.places[claim] = Place.READY
        else:
            refuse(self.queue, "ready", claim, IllegalMove, self.places[claim].value)

    @rule(side=SIDES)
    def take(self, side: Side) -> None:
        first = self.first(side)
        ref = self.queue.take(side)
        if first is None or self.places[first] is not Place.READY:
            assert ref is None
        else:
            assert ref is not None
            assert ref.claim == first
            self.places[first] = Place.TAKEN

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(list(self.places)))
        if self.places[claim] is not Place.TAKEN:
            refuse(self.queue, "settle", claim, IllegalMove, self.places[claim].value)
            return
        self.queue.settle(claim)
        self.settled.add(claim.index)
        self.forget(claim)

    @precondition(lambda self: self.places)
    @rule(data=st.data(), to=st.none() | SIDES)
    def release(self, data: st.DataObject, to: Side | None) -> None:
        claim = data.draw(st.sampled_from(list(self.places)))
        self.queue.release(claim, f"reason {claim.ticket}", to)
        assert f"reason {claim.ticket}" in self.queue.tries(claim.index)
        self.forget(claim)
        self.give_back(claim.index, claim.side if to is None else to)

    @rule(side=SIDES)
    def lose(self, side: Side) -> None:
        self.queue.lose(side, "gone")
        self.lost.add(side)
        self.boundary = None
        for claim in [c for c, place in self.places.items() if c.side is side and place is not Place.TAKEN]:
            self.forget(claim)
            self.give_back(claim.index, side)
        for index in list(self.returned[side]):
            self.returned[side].remove(index)
            self.give_back(index, side)

    @rule(index=st.integers(-3, 15))
    def set_boundary(self, index: int) -> None:
        held = self.queue.set_boundary(index)
        if not self.lost:
            self.boundary = self.clamped(index)
            assert held == self.boundary
        assert self.queue.boundary == self.boundary

    @rule()
    def restart(self) -> None:
        """A queue restored from the state (which is plain JSON) gives exactly what was not settled."""
        state = json.loads(json.dumps(self.queue.state()))
        unsettled = set(range(self.n)) - self.settled
        assert sorted(drained(DualEndedQueue.restore(state))) == sorted(unsettled)
        boundary = self.boundary
        self.void, self.places = [], {}
        self.queue = DualEndedQueue.restore(state)
        self.fresh, self.met = unsettled, self.n
        self.returned = {HEAD: set(), TAIL: set()}
        self.lost, self.last_ticket = set(), 0
        self.boundary = None if boundary is None else self.clamped(boundary)

    # --- moves that are not possible ---------------------------------------------------------------------------------

    @precondition(lambda self: self.void)
    @rule(data=st.data(), move=st.sampled_from(["ready", "settle", "release"]))
    def late_answer(self, data: st.DataObject, move: str) -> None:
        refuse(self.queue, move, data.draw(st.sampled_from(self.void)), StaleTicket)

    @precondition(lambda self: self.places)
    @rule(data=st.data(), move=st.sampled_from(["ready", "settle", "release"]))
    def forged_claim(self, data: st.DataObject, move: str) -> None:
        claim = data.draw(st.sampled_from(list(self.places)))
        refuse(self.queue, move, Claim(claim.index + 1, claim.side, claim.ticket), StaleTicket)

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def counts(self) -> None:
        self.queue.check()
        view = self.queue.view()
        assert view.open + view.claimed + view.ready + view.taken + view.settled == view.n == len(self.queue) == self.n
        places = list(self.places.values())
        assert view.open == len(self.fresh) + len(self.returned[HEAD]) + len(self.returned[TAIL])
        assert (view.claimed, view.ready, view.taken) == tuple(places.count(place) for place in Place)
        assert view.settled == len(self.settled)
        assert self.queue.finished == (view.settled == self.n)

    @invariant()
    def answers(self) -> None:
        for side in Side:
            first = self.first(side)
            assert self.queue.is_ready(side) == (first is not None and self.places[first] is Place.READY)
            assert self.queue.left(side) == (first is not None or self.next_index(side) is not None)
            assert self.queue.unfinished(side) == [
                c for c, place in self.places.items() if c.side is side and place is Place.CLAIMED
            ]
        assert all(self.queue.holds(claim) is place for claim, place in self.places.items())
        assert all(self.queue.holds(claim) is None for claim in self.void)

    @invariant()
    def somebody_can_go_on(self) -> None:
        """While a side has devices, every open batch will be claimed by somebody."""
        if (self.fresh or self.returned[HEAD] or self.returned[TAIL]) and len(self.lost) < 2:
            assert self.next_index(HEAD) is not None or self.next_index(TAIL) is not None

    # --- the model ---------------------------------------------------------------------------------------------------

    def next_index(self, side: Side) -> int | None:
        if side in self.lost:
            return None
        nearest = min if side is HEAD else max
        if self.returned[side]:
            return nearest(self.returned[side])
        index = nearest(self.fresh, default=None)
        if index is None or self.boundary is None or (index < self.boundary) == (side is HEAD):
            return index
        return None

    def first(self, side: Side) -> Claim | None:
        return next((c for c, place in self.places.items() if c.side is side and place is not Place.TAKEN), None)

    def clamped(self, index: int) -> int:
        lo, hi = (min(self.fresh), max(self.fresh) + 1) if self.fresh else (self.met, self.met)
        return min(max(index, lo), hi)

    def forget(self, claim: Claim) -> None:
        del self.places[claim]
        self.void.append(claim)

    def give_back(self, index: int, side: Side) -> None:
        self.returned[side.other if side in self.lost and side.other not in self.lost else side].add(index)


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


@given(n=st.integers(0, 40), head_first=st.lists(st.booleans(), min_size=40, max_size=40))
def test_both_sides_eat_until_they_meet(n: int, head_first: list[bool]) -> None:
    """The head gives 0, 1, 2, ... and the tail n-1, n-2, ...; together exactly 0..n-1."""
    queue = DualEndedQueue(n)
    claims = [queue.claim(HEAD if head else TAIL) for head in head_first[:n]]
    head = [claim.index for claim in claims if claim and claim.side is HEAD]
    tail = [claim.index for claim in claims if claim and claim.side is TAIL]
    assert head == list(range(len(head)))
    assert tail == list(range(n - 1, n - 1 - len(tail), -1))
    assert len(head) + len(tail) == n
    assert queue.claim(HEAD) is None
    assert queue.claim(TAIL) is None


def test_a_side_is_taken_in_claim_order() -> None:
    """A batch that is ready early waits for the ones that its side claimed before it."""
    queue = DualEndedQueue(3)
    first, second = queue.claim(HEAD), queue.claim(HEAD)
    assert first
    assert second
    queue.ready(second, made(second))
    assert queue.take(HEAD) is None
    queue.ready(first, made(first))
    assert [queue.take(HEAD), queue.take(HEAD)] == [made(first), made(second)]


def test_a_released_batch_tells_its_story() -> None:
    """The refusal of a late answer says why its claim was given up."""
    queue = DualEndedQueue(1)
    claim = queue.claim(TAIL)
    assert claim
    queue.release(claim, "csd0 did not answer")
    refuse(queue, "ready", claim, StaleTicket, "csd0 did not answer")


@pytest.mark.parametrize("n", [10, 1_000_000])
def test_the_state_does_not_grow_with_n(n: int) -> None:
    """While each side settles in order the state is a handful of numbers, and so is the memory behind it."""
    queue = DualEndedQueue(n)
    for _ in range(n // 4):
        for side in Side:
            claim = queue.claim(side)
            assert claim
            queue.ready(claim, made(claim))
            assert queue.take(side)
            queue.settle(claim)
    queue.claim(HEAD)
    assert queue.state() == {"n": n, "boundary": None, "left": [[n // 4, n - n // 4]]}
    assert sum(len(part) for part in vars(queue).values() if isinstance(part, dict | set)) <= 1


@pytest.mark.parametrize("left", [[[0, 11]], [[-1, 4]], [[5, 2]], [[0, 5], [3, 8]], [[6, 8], [0, 2]], [[0, 1], [0, 1]]])
def test_a_damaged_state_is_refused(left: list[list[int]]) -> None:
    """A state that puts a batch outside the row, or in two places, is named and not restored."""
    with pytest.raises(UsageError, match="not the state of a queue of 10 batches"):
        DualEndedQueue.restore({"n": 10, "boundary": None, "left": left})


def test_empty_spans_do_not_hide_batches() -> None:
    """Empty spans in a state are harmless."""
    queue = DualEndedQueue.restore({"n": 10, "boundary": None, "left": [[2, 2], [3, 5], [7, 7]]})
    assert sorted(drained(queue)) == [3, 4]
    assert queue.finished


def test_a_queue_of_nothing_is_finished() -> None:
    """n = 0 is an epoch that has ended; a negative n is refused."""
    queue = DualEndedQueue(0)
    assert queue.finished
    assert queue.claim(HEAD) is queue.claim(TAIL) is None
    with pytest.raises(UsageError, match="-1 batches"):
        DualEndedQueue(-1)


def test_repr_shows_where_the_batches_are() -> None:
    """One line with the counts and the boundary."""
    queue = DualEndedQueue(9, boundary=6)
    queue.claim(HEAD)
    assert repr(queue) == "<DualEndedQueue n=9 open=8 claimed=1 ready=0 taken=0 settled=0 boundary=6>"
