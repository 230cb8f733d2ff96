"""The public face: `Loader`, an iterable of batches that are preprocessed from both ends of the data set at once."""

from __future__ import annotations

import asyncio
import importlib
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from ddlp.data.maker import Preparation
from ddlp.data.sampling import ListedPlan, Plan, listed
from ddlp.devices.cpu import CpuPool
from ddlp.errors import BusyError, ClosedError, UsageError
from ddlp.policies.base import Policy
from ddlp.policies.mte import MTE
from ddlp.policies.wrr import WRR
from ddlp.queue import DualEndedQueue
from ddlp.session import Session
from ddlp.stats import BatchInfo, LoaderStatistics, explain
from ddlp.tensors import Unpacker, is_accelerator
from ddlp.types import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ddlp.bridge import Stream
    from ddlp.data.ops import Normalize
    from ddlp.data.recipe import Recipe
    from ddlp.devices.base import Device

POLICIES: dict[str, type[Policy]] = {"mte": MTE, "wrr": WRR}
STATE_VERSION = 1


class Loader:
    """Batches of a data set, made by several devices from both ends, each sample exactly once per epoch.

    Iterate it with `for` or, on any event loop, with `async for`. Each iteration is one epoch; epochs are numbered
    from 0 and advance by themselves. One iteration at a time.

    Args:
        dataset: `ImageFolder`, `CIFAR10`, `ArrayDataset`, or any object with `__len__` and `__getitem__`.
        recipe: what is done to each sample, for example `ddlp.recipes.imagenet_train(224)`; None: samples as they are.
        batch_size: samples per batch, at least 1.
        shuffle: a new order each epoch, a pure function of `seed` and the epoch's number.
        drop_last: leave out the last batch when it is short.
        seed: of order and augmentation. The same seed gives the same batches on any devices.
        devices: who makes batches; None: one `CpuPool`.
        policy: "wrr" (whatever is ready), "mte" (the whole head in order, then the whole tail), or a `Policy`.
        target: where batches are wanted, "cpu" or a CUDA device such as "cuda:0".
        transport: how batches of remote devices get there: "auto" or "bounce".
        prefetch: finished batches that wait for the loop beside the one in its hands.
        timeout: seconds that a batch may take before its device counts as lost; 0 or None: no limit.
        on_bad_sample: "raise": a sample that cannot be read ends the epoch with its path and id.
        collate_fn: makes a batch of a list of samples, as for `torch.utils.data.DataLoader`.
        sampler, batch_sampler: sample ids, or lists of them, drawn anew each epoch, as for DataLoader.
        num_workers: processes of the default `CpuPool`.
        worker_init_fn: called with the worker's number in each worker.
        generator: its initial seed is used as `seed`.
        rank, world_size: this process's share of each epoch: every sample goes to exactly one rank.
        pin_memory, prefetch_factor, persistent_workers, in_order, multiprocessing_context: accepted so that code
            written for DataLoader runs; a value that changes nothing here is warned about.

    Raises:
        UsageError: an argument makes no sense, or the recipe does not fit the data.
    """

    def __init__(
        self,
        dataset: Any,
        recipe: Recipe | None = None,
        batch_size: int = 64,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        devices: Sequence[Device] | None = None,
        policy: str | Policy = "wrr",
        target: str = "cpu",
        transport: str = "auto",
        prefetch: int = 2,
        timeout: float | None = 60.0,
        on_bad_sample: str = "raise",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        pin_memory: bool | None = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        in_order: bool | None = None,
        multiprocessing_context: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        _check("prefetch", prefetch, at_least=1)
        _check("timeout", timeout or 0, at_least=0)
        _check("num_workers", num_workers or 0, at_least=0)
        _one_of("transport", transport, ("auto", "bounce"))
        _one_of("on_bad_sample", on_bad_sample, ("raise",))
        if sampler is not None and batch_sampler is not None:
            raise UsageError("give sampler or batch_sampler, not both")
        _warn_about_dataloader_only(
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            persistent_workers=None if persistent_workers else False,
            in_order=in_order,
            multiprocessing_context=multiprocessing_context,
        )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed if generator is None else generator.initial_seed()
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.rank, self.world_size = rank or 0, world_size or 1
        whole = Preparation(dataset, recipe, collate_fn, worker_init_fn)
        self._preparation, on_target = _divided(whole, accelerator=is_accelerator(target))
        self._fingerprint = whole.fingerprint
        self._recipe = recipe
        self._policy = _policy(policy)
        self._devices = _named([CpuPool(num_workers or None)] if devices is None else devices)
        self._unpack = Unpacker(target, on_target)
        self._target, self._prefetch, self._timeout = target, prefetch, timeout or None
        self._plan_of(0)  # raises for sizes and ranks that make no sense
        self._next_epoch = 0
        self._resume: DualEndedQueue | None = None
        self._session: Session | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._iteration: weakref.ref[_Iteration] | None = None
        self._last: _Course | None = None
        self._closed = False

    # --- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __aiter__(self) -> _Iteration:
        return self._begin()

    def __len__(self) -> int:
        """Batches of one epoch."""
        sampler = self.batch_sampler
        if sampler is not None:
            return len(sampler)  # type: ignore[arg-type]
        return len(self._plan_of(self._next_epoch))

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; a state that was loaded is forgotten. Raises UsageError if negative."""
        _check("epoch", epoch, at_least=0)
        self._next_epoch = epoch
        self._resume = None

    # --- what happens ------------------------------------------------------------------------------------------------

    @property
    def info(self) -> BatchInfo:
        """The batch just delivered. Raises UsageError before the first."""
        if self._last is None or self._last.info is None:
            raise UsageError("no batch has been delivered yet")
        return self._last.info

    @property
    def order(self) -> Order:
        """The order in which batches were delivered in this epoch, or the last; see `Replay`."""
        return Order((), ()) if self._last is None else self._last.order()

    def statistics(self) -> LoaderStatistics:
        """What happened in this epoch, or the last. Raises UsageError before the first."""
        if self._session is None or self._last is None:
            raise UsageError("no epoch has begun yet")
        return self._session.statistics(self._last.number, self._last.stream)

    def explain(self) -> str:
        """Who waited for whom, and why, in words."""
        return explain(self.statistics())

    # --- resuming ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop is, as a small plain dict that JSON can hold.

        It counts the batch in the loop's hands as used, and nothing that was only prefetched. After the last batch it
        says that the epoch is over; before the first, that all of it is left.
        """
        if self._resume is not None or self._last is None or self._last.number + 1 != self._next_epoch:
            epoch, left = self._next_epoch, None if self._resume is None else self._resume.state()
        else:
            epoch, left = self._last.number, self._last.left()
        return {"version": STATE_VERSION, "epoch": epoch, "queue": left, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, with whatever devices and policy this loader has.

        Raises:
            UsageError: the state is of another data set, seed, batch size or recipe; the message says which differ.
        """
        if state.get("version") != STATE_VERSION:
            raise UsageError(f"a state of version {state.get('version')!r}; this release reads version {STATE_VERSION}")
        differing = [
            f"{key} was {state.get(key)!r} and is {value!r}"
            for key, value in self._identity().items()
            if state.get(key) != value
        ]
        if differing:
            raise UsageError("the state belongs to another loader: " + "; ".join(differing))
        queue = None if state["queue"] is None else DualEndedQueue.restore(state["queue"])
        over = queue is not None and queue.finished
        self._next_epoch = int(state["epoch"]) + over
        self._resume = None if over else queue

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and free all memory but the batches that are still in use. Twice is fine."""
        self._closed = True
        if self._session is not None:
            self._session.close()

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Loader:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        devices = " + ".join(device.name for device in self._devices)
        state = " closed" if self._closed else ""
        return (
            f"<Loader {type(self.dataset).__name__} of {self._preparation.samples} in {len(self)} batches, "
            f"{self._policy!r} on {devices}, next epoch {self._next_epoch}{state}>"
        )

    # --- parts -------------------------------------------------------------------------------------------------------

    def _begin(self) -> _Iteration:
        if self._closed:
            raise ClosedError("the loader is closed; make a new one")
        running = None if self._iteration is None else self._iteration()
        if running is not None and running.running:
            raise BusyError(
                "this loader is already being iterated; finish or close() that iterator first, or use a second loader"
            )
        session = self._open_session()
        number = self._next_epoch
        plan = self._plan_of(number)
        queue, self._resume = self._resume or DualEndedQueue(len(plan)), None
        self._next_epoch += 1
        self._last = _Course(number, plan, queue, session.start(plan, queue), self._row, session)
        importlib.import_module("torch")  # the first batches need it; the workers start meanwhile
        iteration = _Iteration(self, self._last)
        self._iteration = weakref.ref(iteration)
        return iteration

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = Session(
                self._preparation, self._devices, self._policy, self._target, self._prefetch, self._timeout
            )
            self._finalizer = weakref.finalize(self, self._session.drop)
            self._finalizer.atexit = False  # what is open at exit is closed by the bridge, which waits for it
        return self._session

    @property
    def _row(self) -> Sequence[int] | None:
        row = self._policy.row
        return None if row is None or list(row) == list(range(len(row))) else row

    def _plan_of(self, epoch: int) -> Plan | ListedPlan:
        plan = self._plain_plan(epoch)
        if self._row is None:
            return plan
        return listed((plan.ids(index).tolist() for index in self._row), self.seed, epoch)

    def _plain_plan(self, epoch: int) -> Plan | ListedPlan:
        if self.batch_sampler is not None:
            return listed(self.batch_sampler, self.seed, epoch)
        if self.sampler is not None:
            return listed(_chunks(list(self.sampler), self.batch_size, self.drop_last), self.seed, epoch)
        return Plan(
            samples=self._preparation.samples,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
            rank=self.rank,
            world_size=self.world_size,
        )

    def _identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        return {
            "samples": self._preparation.samples,
            "fingerprint": self._fingerprint,
            "recipe": None if self._recipe is None else self._recipe.digest,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self.seed,
            "rank": self.rank,
            "world_size": self.world_size,
        }


class _Course:
    """One epoch as the loader sees it: its number, its plan, and the stream that brings its batches."""

    def __init__(
        self,
        number: int,
        plan: Plan | ListedPlan,
        queue: DualEndedQueue,
        stream: Stream,
        row: Sequence[int] | None,
        session: Session,
    ) -> None:
        self.number = number
        self.plan = plan
        self.queue = queue
        self.stream = stream
        self.info: BatchInfo | None = None
        self._row = row
        self._session = session

    def note(self, batch: Any) -> None:
        """The loop has been given `batch`."""
        ref, position = batch.ref, batch.claim.index
        self.info = BatchInfo(
            index=position if self._row is None else self._row[position],
            sample_ids=tuple(self.plan.ids(position).tolist()),
            epoch=self.number,
            side=batch.claim.side,
            device=ref.device,
            made_s=ref.made_s,
            cpu_s=ref.cpu_s,
            carried_s=batch.carried_s,
        )

    def order(self) -> Order:
        epoch = self.stream.epoch
        if epoch is None:
            return Order((), ())
        order = epoch.order
        if self._row is None:
            return order
        return Order(tuple(self._row[position] for position in order.batches), order.sides)

    def left(self) -> dict[str, Any]:
        """The queue's state, with the batch in the loop's hands counted as used."""
        in_hand = self.stream.in_hand
        return self._session.thread.ask(lambda: self.queue.state(used=None if in_hand is None else in_hand.claim))


class _Iteration:
    """One pass over the loader, for `for` and for `async for`. Dropping it ends the epoch."""

    def __init__(self, loader: Loader, course: _Course) -> None:
        self._loader = loader  # keeps it open while it is iterated
        self._course = course
        self._waiting = False
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return not self._closed and not self._course.stream.finished

    def __iter__(self) -> _Iteration:
        return self

    def __aiter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        return self._hand_on(self._course.stream.take())

    async def __anext__(self) -> Any:
        if self._waiting:
            raise BusyError("two tasks are waiting for the next batch of one iteration; give each its own loader")
        self._waiting = True
        try:
            return self._hand_on(await self._course.stream.atake())
        finally:
            self._waiting = False

    def __len__(self) -> int:
        return len(self._course.plan)

    def close(self) -> None:
        """End the epoch early. Batches that were handed out stay valid."""
        self._closed = True
        self._course.stream.close()

    async def aclose(self) -> None:
        """`close`, under the name that `contextlib.aclosing` wants."""
        self.close()

    def __del__(self) -> None:
        self.close()

    def _hand_on(self, batch: Any) -> Any:
        self._course.note(batch)
        return self._loader._unpack(batch)


def _divided(whole: Preparation, *, accelerator: bool) -> tuple[Preparation, Normalize | None]:
    """What the devices do of `whole`, and what the target does."""
    if whole.recipe is None:
        return whole, None
    recipe, on_target = whole.recipe.split(accelerator=accelerator)
    if on_target is None:
        return whole, None
    part = Preparation(whole.dataset, recipe, whole.collate_fn, whole.worker_init_fn)
    if part.layout is not None and part.layout.fields[0].dtype == "uint8":
        return part, on_target
    if on_target.where == "target":
        raise UsageError(f'Normalize(where="target") takes uint8 pixels, not {part.layout}: leave it to the workers')
    return whole, None


def _policy(policy: str | Policy) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        raise UsageError(f"unknown policy {policy!r}: use {', '.join(map(repr, POLICIES))} or a Policy object")
    return POLICIES[policy]()


def _named(devices: Sequence[Device]) -> list[Device]:
    """The devices under names of their own: a second csd0 becomes csd1."""
    if not devices:
        raise UsageError("devices is empty: a loader needs at least one, or None for a CpuPool")
    seen: set[str] = set()
    for device in devices:
        stem = device.name.rstrip("0123456789")
        number = 0
        while device.name in seen:
            device.name, number = f"{stem}{number}", number + 1
        seen.add(device.name)
    return list(devices)


def _chunks(ids: list[int], size: int, drop_last: bool) -> Iterator[list[int]]:
    _check("batch_size", size, at_least=1)
    for start in range(0, len(ids), size):
        if start + size <= len(ids) or not drop_last:
            yield ids[start : start + size]


def _check(name: str, value: float, *, at_least: int) -> None:
    if value < at_least:
        raise UsageError(f"{name} must be at least {at_least}, not {value}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} must be {' or '.join(map(repr, known))} in this release, not {value!r}")


def _warn_about_dataloader_only(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            warnings.warn(f"{name}={value!r} changes nothing in a ddlp.Loader", stacklevel=3)
