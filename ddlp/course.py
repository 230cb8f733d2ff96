"""One epoch as the loader sees it, and the iterator that the training loop holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlp.errors import BusyError
from ddlp.stats import BatchInfo
from ddlp.types import Order

if TYPE_CHECKING:
    from ddlp.data.plans import Plans
    from ddlp.data.sampling import ListedPlan, Plan
    from ddlp.queue import DualEndedQueue
    from ddlp.session import Session


class Course:
    """An epoch: its number, its plan, where its batches are, and the stream that brings them."""

    def __init__(
        self,
        session: Session,
        plans: Plans,
        number: int,
        plan: Plan | ListedPlan,
        queue: DualEndedQueue,
        unpack: Any,
    ) -> None:
        self.number = number
        self.plan = plan
        self._plans = plans
        self._queue = queue
        self._todo = queue.view().open
        self._session = session
        self._last: Any = None  # the batch that was delivered last
        self.stream = session.start(plan, queue, unpack)

    @property
    def delivered_all(self) -> bool:
        """Whether the loop has been given every batch, though it may not have asked for the end."""
        return len(self.stream.handed) == self._todo

    def note(self) -> None:
        """The loop has been given a batch."""
        self._last = self.stream.in_hand or self._last

    def info(self) -> BatchInfo | None:
        """Of the batch just delivered; None before the first."""
        if self._last is None:
            return None
        ref, position = self._last.ref, self._last.claim.index
        return BatchInfo(
            index=self._plans.index(position),
            sample_ids=tuple(self.plan.ids(position).tolist()),
            epoch=self.number,
            side=ref.claim.side,
            device=ref.device,
            made_s=ref.made_s,
            cpu_s=ref.cpu_s,
            carried_s=self._last.carried_s,
        )

    def order(self) -> Order:
        """The batches that the loop was given."""
        claims = tuple(self.stream.handed)
        indices = tuple(self._plans.index(claim.index) for claim in claims)
        return Order(indices, tuple(claim.side for claim in claims))

    def left(self) -> dict[str, Any]:
        """The queue's state, with the batch in the loop's hands counted as used."""
        in_hand = self.stream.in_hand
        return self._session.thread.ask(lambda: self._queue.state(used=None if in_hand is None else in_hand.claim))


class Iteration:
    """One pass over a loader, for `for` and for `async for`. Dropping it ends the epoch."""

    def __init__(self, loader: object, course: Course) -> None:
        self._loader = loader  # stays open while it is iterated
        self._course = course
        self._waiting = False
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return not self._closed and not self._course.stream.finished

    def __iter__(self) -> Iteration:
        return self

    def __aiter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        batch = self._course.stream.take()
        self._course.note()
        return batch

    async def __anext__(self) -> Any:
        if self._waiting:
            raise BusyError("two tasks are waiting for the next batch of one iteration; give each its own loader")
        self._waiting = True
        try:
            batch = await self._course.stream.atake()
        finally:
            self._waiting = False
        self._course.note()
        return batch

    def __len__(self) -> int:
        return len(self._course.plan)

    def make_way(self) -> None:
        """Another iteration is to begin. Raises BusyError while this one still has batches to give."""
        if not self.running:
            return
        if not self._course.delivered_all:
            raise BusyError(
                "this loader is already being iterated; finish or close() that iterator first, or use a second loader"
            )
        self._course.stream.end()
        self._closed = True

    def close(self) -> None:
        """End the epoch early. Batches that were handed out stay valid."""
        self._closed = True
        self._course.stream.close()

    async def aclose(self) -> None:
        """`close`, under the name that `contextlib.aclosing` wants."""
        self.close()

    def __del__(self) -> None:
        self.close()
