"""The public face: `Loader`, an iterable of batches that are preprocessed from both ends of the data set at once."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Literal

from ddlp.course import Course, Iteration
from ddlp.data.cache import DecodedCache
from ddlp.data.maker import Preparation
from ddlp.data.plans import Plans, listing
from ddlp.data.sampling import ListedPlan, Plan
from ddlp.devices.cpu import CpuPool
from ddlp.devices.registry import open_device
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
        dataset: `ImageFolder`, `TarShards`, `CIFAR10`, `ArrayDataset`, or any object with `__len__` and `__getitem__`.
        recipe: what is done to each sample, for example `ddlp.recipes.imagenet_train(224)`; None: samples as they are.
        batch_size: samples per batch, at least 1.
        shuffle: a new order each epoch, a pure function of `seed` and the epoch's number.
        drop_last: leave out the last batch when it is short.
        seed: of order and augmentation. The same seed gives the same batches on any devices.
        devices: who makes batches, as objects or by URL ("emu://"); None: one `CpuPool`.
        policy: "wrr" (whatever is ready), "mte" (the whole head in order, then the whole tail), or a `Policy`.
        target: where batches are wanted, "cpu" or a CUDA device such as "cuda:0".
        transport: how batches of remote devices get there: "auto" or "bounce".
        prefetch: finished batches that wait for the loop beside the one in its hands.
        timeout: seconds that a device may take for a batch, from when it is done with those before it, until it counts
            as lost; 0 or None: no limit.
        on_bad_sample: "raise": a sample that cannot be read ends the epoch with its path and id.
        collate_fn: makes a batch of a list of samples, as for `torch.utils.data.DataLoader`.
        sampler, batch_sampler: sample ids, or lists of them, drawn anew each epoch, as for DataLoader.
        num_workers: processes of the default `CpuPool`; "auto": as many as measuring while it works finds best.
        worker_init_fn: called with the worker's number in each worker.
        generator: its initial seed is used as `seed`.
        rank, world_size: this process's share of each epoch: every sample goes to exactly one rank.
        cache: "decoded", or a `DecodedCache`: keep the decoded pixels of image files, so that later epochs only crop.
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
        devices: Sequence[Device | str] | None = None,
        policy: str | Policy = "wrr",
        target: str = "cpu",
        transport: str = "auto",
        prefetch: int = 2,
        timeout: float | None = 60.0,
        on_bad_sample: str = "raise",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int | Literal["auto"] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        pin_memory: bool | None = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        in_order: bool | None = None,
        multiprocessing_context: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        cache: str | DecodedCache | None = None,
    ) -> None:
        _check("batch_size", batch_size, at_least=1)
        _check("prefetch", prefetch, at_least=1)
        _check("timeout", timeout or 0, at_least=0)
        if num_workers != "auto":
            _check("num_workers", num_workers or 0, at_least=0)
        _one_of("transport", transport, ("auto", "bounce"))
        _one_of("on_bad_sample", on_bad_sample, ("raise",))
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
        kept = None
        if cache is not None:
            recipe, kept = _cache(cache).open(dataset, recipe, self.world_size)
        whole = Preparation(dataset, recipe, collate_fn, worker_init_fn, kept)
        self._preparation, on_target = _divided(whole, accelerator=is_accelerator(target))
        self._fingerprint = whole.fingerprint
        self._recipe = recipe
        self._policy = _policy(policy)
        self._devices = _devices(devices, num_workers)
        formula = Plan(whole.samples, batch_size, drop_last, shuffle, self.seed, 0, self.rank, self.world_size)
        self._plans = Plans(formula, sampler, batch_sampler, self._policy.row)
        self._unpack = Unpacker(target, on_target)
        self._target, self._prefetch, self._timeout = target, prefetch, timeout or None
        self._next_epoch = 0
        self._resume: dict[str, Any] | None = None  # of the state that was loaded
        self._session: Session | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._iteration: weakref.ref[Iteration] | None = None
        self._course: Course | None = None  # what a state describes
        self._shown: Course | None = None  # what is told about
        self._closed = False

    # --- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __aiter__(self) -> Iteration:
        return self._begin()

    def __len__(self) -> int:
        """Batches of one epoch."""
        return self._plans.batches()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; a state that was loaded is forgotten. Raises UsageError if negative."""
        _check("epoch", epoch, at_least=0)
        self._next_epoch = epoch
        self._course = self._resume = None

    # --- what happens ------------------------------------------------------------------------------------------------

    @property
    def info(self) -> BatchInfo:
        """The batch just delivered. Raises UsageError before the first."""
        info = None if self._shown is None else self._shown.info()
        if info is None:
            raise UsageError("no batch has been delivered yet")
        return info

    @property
    def order(self) -> Order:
        """The order in which batches were delivered in this epoch, or the last; see `Replay`."""
        return Order((), ()) if self._shown is None else self._shown.order()

    def statistics(self) -> LoaderStatistics:
        """What happened in this epoch, or the last. Raises UsageError before the first."""
        if self._session is None or self._shown is None:
            raise UsageError("no epoch has begun yet")
        return self._session.statistics(self._shown.number, self._shown.stream)

    def explain(self) -> str:
        """Who waited for whom, and why, in words."""
        return explain(self.statistics())

    # --- resuming ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop is, as a small plain dict that JSON can hold.

        It counts the batch in the loop's hands as used, and nothing that was only prefetched. After the last batch it
        says that the epoch is over; before the first, that all of it is left.
        """
        state: dict[str, Any] = {"version": STATE_VERSION, "epoch": self._next_epoch, "queue": None, "listing": None}
        if self._resume is not None:
            state.update(self._resume)
        elif self._course is not None and self._course.number + 1 == self._next_epoch:
            course = self._course
            state.update(epoch=course.number, queue=course.left(), listing=listing(course.plan))
        return {**state, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, with whatever devices and policy this loader has.

        Raises:
            UsageError: the state is of another data set, seed, batch size or recipe; the message says which differ.
            That a sampler draws other samples than it did is only seen, and raised, when the iteration begins.
        BusyError: the loader is being iterated.
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
        running = None if self._iteration is None else self._iteration()
        if running is not None and running.running:
            raise BusyError("a state cannot be loaded into a loader that is iterated: finish or close() that iterator")
        begun = state["queue"] is not None
        over = begun and DualEndedQueue.restore(state["queue"]).finished
        self._course = None
        self._next_epoch = int(state["epoch"]) + over
        self._resume = {"queue": state["queue"], "listing": state.get("listing")} if begun and not over else None

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and free all memory but the batches that are still in use. Twice is fine."""
        self._closed = True
        if self._session is not None:
            self._session.close()
        self._preparation.close()

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
            f"<Loader {type(self.dataset).__name__} of {self._preparation.samples} in {self._plans!r}, "
            f"{self._policy!r} on {devices}, next epoch {self._next_epoch}{state}>"
        )

    # --- parts -------------------------------------------------------------------------------------------------------

    def _begin(self) -> Iteration:
        if self._closed:
            raise ClosedError("the loader is closed; make a new one")
        before = None if self._iteration is None else self._iteration()
        if before is not None:
            before.make_way()
        number = self._next_epoch
        plan = self._plans.plan(number)
        queue = self._queue(plan)
        course = Course(self._open_session(), self._plans, number, plan, queue, self._unpack)
        iteration = Iteration(self, course)  # owns the epoch from here on, whatever happens
        _import_torch()  # the first batches need it; the workers start meanwhile
        self._course = self._shown = course
        self._iteration = weakref.ref(iteration)
        self._next_epoch, self._resume = number + 1, None
        return iteration

    def _queue(self, plan: Plan | ListedPlan) -> DualEndedQueue:
        """All batches of the plan, or what the loaded state has left of them."""
        if self._resume is None:
            return DualEndedQueue(len(plan))
        if self._resume["listing"] != listing(plan) or self._resume["queue"]["n"] != len(plan):
            raise UsageError(
                "the state was taken in another order of samples: a sampler must draw the same samples again for the"
                " epoch that is resumed, and a state taken under Replay needs the same Replay"
            )
        return DualEndedQueue.restore(self._resume["queue"])

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = Session(
                self._preparation, self._devices, self._policy, self._target, self._prefetch, self._timeout
            )
            self._finalizer = weakref.finalize(self, self._session.drop)
            self._finalizer.atexit = False  # what is open at exit is closed by the bridge, which waits for it
        return self._session

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


def _import_torch() -> None:
    """Import torch, and take Ctrl-C when that is done: raised inside of its C++ it would abort the process."""
    if "torch" in sys.modules:
        return
    # Ctrl-C is raised in the main thread only, and a handler that is not Python's could not be put back.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        importlib.import_module("torch")
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    try:
        importlib.import_module("torch")
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        signal.raise_signal(signal.SIGINT)


def _divided(whole: Preparation, *, accelerator: bool) -> tuple[Preparation, Normalize | None]:
    """What the devices do of `whole`, and what the target does."""
    if whole.recipe is None:
        return whole, None
    recipe, on_target = whole.recipe.split(accelerator=accelerator)
    if on_target is None:
        return whole, None
    part = Preparation(whole.dataset, recipe, whole.collate_fn, whole.worker_init_fn, whole.kept)
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


def _cache(cache: str | DecodedCache) -> DecodedCache:
    if isinstance(cache, DecodedCache):
        return cache
    if cache != "decoded":
        raise UsageError(f'cache must be None, "decoded" or a DecodedCache, not {cache!r}')
    return DecodedCache()


def _devices(devices: Sequence[Device | str] | None, num_workers: int | Literal["auto"] | None) -> list[Device]:
    """The devices under names of their own: a second csd0 becomes csd1. A URL becomes the device that it names."""
    if devices is None:
        # DataLoader's 0, no process at all, comes nearest to one: the training loop's process makes no batches here.
        return [CpuPool(1 if num_workers == 0 else num_workers)]
    if num_workers is not None:
        raise UsageError("num_workers is for the default CpuPool: with devices=, write CpuPool(workers=...) there")
    found = [open_device(device) if isinstance(device, str) else device for device in devices]
    if not found:
        raise UsageError("devices is empty: a loader needs at least one, or None for a CpuPool")
    if len({id(device) for device in found}) < len(found):
        raise UsageError("the same device stands in devices twice: make a second one")
    names: set[str] = set()
    for device in found:
        stem = device.name.rstrip("0123456789")
        number = 0
        while device.name in names:
            device.name, number = f"{stem}{number}", number + 1
        names.add(device.name)
    return found


def _check(name: str, value: float, *, at_least: int) -> None:
    if not isinstance(value, (int, float)) or (name != "timeout" and not isinstance(value, int)):
        raise UsageError(f"{name} must be a number, at least {at_least}, not {value!r}")
    if value < at_least:
        raise UsageError(f"{name} must be at least {at_least}, not {value}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} must be {' or '.join(map(repr, known))} in this release, not {value!r}")


def _warn_about_dataloader_only(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            warnings.warn(f"{name}={value!r} changes nothing in a ddlp.Loader", stacklevel=3)
