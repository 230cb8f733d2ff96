"""Where every batch of one epoch is. Pure and synchronous; nothing else keeps count.

    open --claim--> claimed --ready--> ready --take--> taken --settle--> settled (final)
     ^               | release          | release         | release
     +---------------+------------------+-----------------+

Rules:
* open + claimed + ready + taken + settled = n, always. What is settled is never stored: it is what is nowhere else.
* The head claims the lowest open index, the tail the highest. With a boundary b the head claims only below b and the
  tail only from b up; without one they eat until they meet.
* Every claim has a new ticket. A move names its claim; a claim that was given up meanwhile raises StaleTicket.
* Within a side, batches are taken in the order in which they were claimed.
* A released batch is claimed again by its own side, before anything new, unless it was handed to the other side or
  its side is lost.
* A move that is not in the picture raises IllegalMove, names batch, place and story, and changes nothing.
"""

from __future__ import annotations

import enum
from collections import deque
from heapq import heappop, heappush
from typing import Any

import msgspec

from ddlp.errors import IllegalMove, StaleTicket, UsageError
from ddlp.types import HEAD, TAIL, BatchRef, Claim, Side


class Place(enum.Enum):
    """Where a claimed batch is until it is settled."""

    CLAIMED = "claimed"
    READY = "ready"
    TAKEN = "taken"


class QueueView(msgspec.Struct, frozen=True):
    """How many batches are where; `open + claimed + ready + taken + settled == n`."""

    n: int
    open: int
    claimed: int
    ready: int
    taken: int
    settled: int
    boundary: int | None


class _Held:
    """A claim that is not settled: where it is, and its finished batch."""

    __slots__ = ("claim", "place", "ref")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.place = Place.CLAIMED
        self.ref: BatchRef | None = None


class DualEndedQueue:
    """The row of batches 0..n-1, eaten from both ends."""

    def __init__(self, n: int, boundary: int | None = None) -> None:
        if n < 0:
            raise UsageError(f"an epoch of {n} batches makes no sense")
        self._n = n
        # The open middle: disjoint spans [lo, hi), ascending. One span always stays, empty or not, so that the place
        # where the sides met is known; more than one only after restore() of an unusual history.
        self._spans: deque[list[int]] = deque([[0, n]])
        # Released batches, per side, as heaps in that side's direction (the tail's indices are negated).
        self._returned: tuple[list[int], list[int]] = ([], [])
        self._held: dict[int, _Held] = {}  # by ticket
        self._line: tuple[deque[_Held], deque[_Held]] = (deque(), deque())  # claim order; may hold stale entries
        self._story: dict[int, list[str]] = {}  # why each released index was released
        self._lost: set[Side] = set()
        self._last_ticket = 0
        self._boundary: int | None = None
        if boundary is not None:
            self.set_boundary(boundary)

    # --- moves -------------------------------------------------------------------------------------------------------

    def claim(self, side: Side) -> Claim | None:
        """The side's next open batch, or None when there is none that it may claim now."""
        if side in self._lost:
            return None
        returned = self._returned[side]
        if returned:
            index = abs(heappop(returned))
        elif self._may_eat(side):
            index = self._eat(side)
        else:
            return None
        self._last_ticket += 1
        held = _Held(Claim(index, side, self._last_ticket))
        self._held[self._last_ticket] = held
        self._line[side].append(held)
        return held.claim

    def ready(self, claim: Claim, ref: BatchRef) -> None:
        """The claim's batch is finished and lies at `ref`."""
        held = self._find(claim, "make ready", Place.CLAIMED)
        held.place, held.ref = Place.READY, ref

    def take(self, side: Side) -> BatchRef | None:
        """The side's earliest claimed batch, or None while that one is not ready."""
        held = self._first(side)
        if held is None or held.place is not Place.READY:
            return None
        held.place = Place.TAKEN
        self._line[side].popleft()
        return held.ref

    def settle(self, claim: Claim) -> None:
        """The batch was used; it never comes back."""
        self._find(claim, "settle", Place.TAKEN)
        del self._held[claim.ticket]

    def release(self, claim: Claim, why: str, side: Side | None = None) -> None:
        """Give a batch back, to be made again by its own side, or by `side`. Its ticket is void from now on."""
        self._find(claim, "release", *Place)
        del self._held[claim.ticket]
        self._story.setdefault(claim.index, []).append(why)
        self._give_back(claim.index, claim.side if side is None else side)

    def lose(self, side: Side, why: str = "the side has no devices left") -> None:
        """The side makes nothing any more: all that it has not handed over goes to the other side."""
        self._lost.add(side)
        self._boundary = None
        for held in [held for held in self._held.values() if held.claim.side is side and held.place is not Place.TAKEN]:
            self.release(held.claim, why)
        returned = self._returned[side]
        while returned:
            self._give_back(abs(heappop(returned)), side.other)

    def set_boundary(self, index: int) -> int:
        """Fix where the sides meet, as near to `index` as what is already claimed allows; returns where that is."""
        if self._lost:
            return self._spans[0][0] if HEAD in self._lost else self._spans[-1][1]
        self._boundary = min(max(index, self._spans[0][0]), self._spans[-1][1])
        return self._boundary

    # --- questions ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._n

    @property
    def boundary(self) -> int | None:
        """Where the sides meet, when that is fixed."""
        return self._boundary

    @property
    def finished(self) -> bool:
        """Whether every batch is settled."""
        return not self._held and not self._returned[HEAD] and not self._returned[TAIL] and not self._open_span()

    def is_ready(self, side: Side) -> bool:
        """Whether take(side) would give a batch."""
        held = self._first(side)
        return held is not None and held.place is Place.READY

    def left(self, side: Side) -> bool:
        """Whether take(side) can still give a batch, now or later."""
        return self._first(side) is not None or (
            side not in self._lost and (bool(self._returned[side]) or self._may_eat(side))
        )

    def unfinished(self, side: Side) -> list[Claim]:
        """The side's claims that are being made, in claim order."""
        return [held.claim for held in self._line[side] if held.place is Place.CLAIMED and self._is_current(held)]

    def holds(self, claim: Claim) -> Place | None:
        """Where the claim's batch is; None for a claim that is settled or was given up."""
        held = self._held.get(claim.ticket)
        return None if held is None else held.place

    def tries(self, index: int) -> list[str]:
        """Why the batch was released, once per time that it was."""
        return list(self._story.get(index, ()))

    def view(self) -> QueueView:
        """The counts, each derived from where the batches are."""
        places = [held.place for held in self._held.values()]
        count = {place: places.count(place) for place in Place}
        is_open = self._open_span() + len(self._returned[HEAD]) + len(self._returned[TAIL])
        return QueueView(
            n=self._n,
            open=is_open,
            claimed=count[Place.CLAIMED],
            ready=count[Place.READY],
            taken=count[Place.TAKEN],
            settled=self._n - is_open - len(places),
            boundary=self._boundary,
        )

    def state(self, used: Claim | None = None) -> dict[str, Any]:
        """What is not settled, as plain numbers: `{"n", "boundary", "left": [[lo, hi], ...]}`.

        `used` is a taken batch to count as settled already. The size of the state does not grow with n for histories
        in which each side settled in order.
        """
        spans = self._unsettled(without=used)
        return {"n": self._n, "boundary": self._boundary, "left": _merged(spans)}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> DualEndedQueue:
        """A queue in which exactly what was not settled in `state` is open."""
        queue = cls(int(state["n"]))
        spans = [[int(lo), int(hi)] for lo, hi in state["left"]]
        ends = [end for span in spans for end in span]
        if ends != sorted(ends) or (ends and (ends[0] < 0 or ends[-1] > queue._n)):
            raise UsageError(f"not the state of a queue of {queue._n} batches: left={state['left']!r}")
        queue._spans = deque(span for span in spans if span[0] < span[1]) or deque([[queue._n, queue._n]])
        if state.get("boundary") is not None:
            queue.set_boundary(int(state["boundary"]))
        return queue

    def check(self) -> None:
        """Derive everything again from the parts. Raises IllegalMove when they contradict each other."""
        spans = self._unsettled()
        seen = sorted(index for lo, hi in spans for index in range(lo, hi))
        if len(seen) != len(set(seen)) or (seen and (seen[0] < 0 or seen[-1] >= self._n)):
            raise IllegalMove(f"a batch is in two places, or outside of 0..{self._n - 1}: {spans}")
        for side in Side:
            tickets = [held.claim.ticket for held in self._line[side]]
            if tickets != sorted(set(tickets)):
                raise IllegalMove(f"the {side.name.lower()} line is out of claim order: {tickets}")
            orphaned = self._returned[side] and side.other not in self._lost
            if side in self._lost and (orphaned or self._first(side)):
                raise IllegalMove(f"the {side.name.lower()} is lost and still has batches")
        queued = {held.claim.ticket for line in self._line for held in line if self._is_current(held)}
        waiting = {ticket for ticket, held in self._held.items() if held.place is not Place.TAKEN}
        if queued != waiting:
            raise IllegalMove(f"claims in line {sorted(queued)} are not the claims that wait {sorted(waiting)}")

    def __repr__(self) -> str:
        view = self.view()
        counts = " ".join(f"{name}={getattr(view, name)}" for name in ("open", "claimed", "ready", "taken", "settled"))
        boundary = "" if self._boundary is None else f" boundary={self._boundary}"
        return f"<DualEndedQueue n={self._n} {counts}{boundary}>"

    # --- parts -------------------------------------------------------------------------------------------------------

    def _may_eat(self, side: Side) -> bool:
        span = self._spans[0 if side is HEAD else -1]
        if span[0] == span[1]:
            return False
        if self._boundary is None:
            return True
        return span[0] < self._boundary if side is HEAD else span[1] > self._boundary

    def _eat(self, side: Side) -> int:
        span = self._spans[0 if side is HEAD else -1]
        if side is HEAD:
            index = span[0]
            span[0] += 1
        else:
            span[1] -= 1
            index = span[1]
        if span[0] == span[1] and len(self._spans) > 1:
            self._spans.popleft() if side is HEAD else self._spans.pop()
        return index

    def _give_back(self, index: int, side: Side) -> None:
        owner = side.other if side in self._lost and side.other not in self._lost else side
        heappush(self._returned[owner], index if owner is HEAD else -index)

    def _first(self, side: Side) -> _Held | None:
        line = self._line[side]
        while line and not self._is_current(line[0]):
            line.popleft()
        return line[0] if line else None

    def _is_current(self, held: _Held) -> bool:
        return self._held.get(held.claim.ticket) is held

    def _find(self, claim: Claim, move: str, *places: Place) -> _Held:
        held = self._held.get(claim.ticket)
        if held is None or held.claim != claim:
            story = "; ".join(self._story.get(claim.index, ())) or "it was settled, or never claimed"
            raise StaleTicket(f"cannot {move} {claim}: the ticket is void ({story})")
        if held.place not in places:
            raise IllegalMove(f"cannot {move} {claim}: it is {held.place.value}")
        return held

    def _open_span(self) -> int:
        return sum(hi - lo for lo, hi in self._spans)

    def _unsettled(self, without: Claim | None = None) -> list[tuple[int, int]]:
        spans = [(lo, hi) for lo, hi in self._spans if lo < hi]
        indices = [abs(index) for returned in self._returned for index in returned]
        indices += [held.claim.index for held in self._held.values() if held.claim != without]
        return spans + [(index, index + 1) for index in indices]


def _merged(spans: list[tuple[int, int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for lo, hi in sorted(spans):
        if merged and merged[-1][1] == lo:
            merged[-1][1] = hi
        else:
            merged.append([lo, hi])
    return merged
