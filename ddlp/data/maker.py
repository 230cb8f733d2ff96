"""Data set + recipe -> batches: what a loader prepares once, and the maker that each worker or agent runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from ddlp.data import decode
from ddlp.data.array_rows import ArrayRows, RawRows
from ddlp.data.arrays import ArrayDataset
from ddlp.data.base import Source, digest
from ddlp.data.cache import KeptSamples
from ddlp.data.collate import collate
from ddlp.data.fetching import Fetcher
from ddlp.data.image_rows import ImageRows, samples_of
from ddlp.data.layout import check_arguments, form_and_layout
from ddlp.data.ops import Map
from ddlp.data.python import pack, why_unpicklable
from ddlp.data.recipe import Recipe
from ddlp.data.sampling import Plan
from ddlp.data.sources import open_source
from ddlp.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ddlp.data.pixel_file import PixelFile
    from ddlp.data.python import Column
    from ddlp.data.rows import Rows
    from ddlp.data.sampling import ListedPlan


class Preparation:
    """A data set and what is done to it, checked and frozen; made once, in the process of the loader.

    samples      in the data set
    layout       the form of every batch; None: batches are whatever Python returns
    fingerprint  agrees between host and agent where data and recipe do
    python       whether arbitrary Python of the user runs in it
    kept         the file of decoded pixels, where there is one; see `DecodedCache.open`
    """

    def __init__(
        self,
        dataset: Any,
        recipe: Recipe | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        kept: PixelFile | None = None,
    ) -> None:
        """
        Raises:
            UsageError: the data set is none, or the recipe does not fit it.
            SampleError: the first sample, which shows the form of the images, cannot be read.
        """
        check_arguments(dataset, recipe, collate_fn)
        self.dataset = dataset
        self.recipe = recipe
        self.collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        self.kept = kept
        self.samples = len(dataset)
        self._form, self.layout = form_and_layout(dataset, recipe, collate_fn)
        self.fingerprint = _fingerprint(dataset, recipe)

    @property
    def python(self) -> bool:
        maps = self.recipe is not None and self.recipe.of(Map)
        return bool(maps or self.collate_fn or self.worker_init_fn) or not isinstance(self.dataset, Source)

    def describe(self) -> tuple[bytes, bytes]:
        """(data set, recipe) as JSON, for an agent that opens its own copy.

        Raises:
            UsageError: a part of it exists in this process only.
        """
        for name, part in (("collate_fn", self.collate_fn), ("worker_init_fn", self.worker_init_fn)):
            if part is not None:
                raise UsageError(f"{name} is Python of this process and cannot be described to an agent: leave it out")
        if not isinstance(self.dataset, Source):
            kinds = "ImageFolder, TarShards, CIFAR10 or ArrayDataset of .npy paths"
            name = type(self.dataset).__name__
            raise UsageError(f"a {name} cannot be described to an agent: use {kinds}, or keep it on the CPU pool")
        recipe = b"null" if self.recipe is None else self.recipe.to_json()
        return msgspec.json.encode(self.dataset.describe()), recipe

    @classmethod
    def described(cls, dataset: bytes, recipe: bytes) -> Preparation:
        """What `describe` described, opened on this machine.

        Raises:
            UsageError: these are no descriptions, or the recipe does not fit the data that is here.
            DataError: the data set cannot be read here.
        """
        try:
            description = msgspec.json.decode(dataset)
        except msgspec.MsgspecError as error:
            raise UsageError(f"not the description of a data set: {error}") from error
        return cls(open_source(description), None if recipe == b"null" else Recipe.from_json(recipe))

    def maker(self, worker: int = 0) -> Maker:
        """The maker of worker number `worker`, to be called in its process."""
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
        return Maker(self, self._rows())

    def _rows(self) -> Rows | None:
        if self.layout is None:
            return None
        if self.recipe is None or self._form is None:
            return RawRows(self.dataset.arrays)
        if isinstance(self.dataset, ArrayDataset) and self.recipe.on_arrays:
            return ArrayRows(self.recipe, self.dataset.arrays, self._form)
        samples = samples_of(self.dataset) if self.kept is None else KeptSamples(self.dataset, self.kept)
        return ImageRows(self.recipe, samples, self._form)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that a process must inherit to unpickle it."""
        return () if self.kept is None else (self.kept.fd,)

    def close(self) -> None:
        """Let go of the pixels that are kept."""
        if self.kept is not None:
            self.kept.close()

    def __repr__(self) -> str:
        return f"Preparation({self.dataset!r}, {self.recipe!r})"


class Maker:
    """Makes batches of one epoch after the other. Lives in one worker or agent process, in one thread."""

    def __init__(self, preparation: Preparation, rows: Rows | None) -> None:
        self._preparation = preparation
        self._rows = rows
        self._fetcher = Fetcher(preparation.dataset)
        self._plan: Plan | ListedPlan | None = None

    def begin(self, plan: Plan | ListedPlan) -> None:
        """Later batches are those of `plan`. Raises UsageError where it is made for another data set."""
        samples = self._preparation.samples
        needed = plan.samples if isinstance(plan, Plan) else plan.largest_id + 1
        if needed > samples or (isinstance(plan, Plan) and needed < samples):
            raise UsageError(f"the plan is for {needed} samples, and the data set has {samples}")
        self._plan = plan

    def make(self, index: int, lo: int, hi: int, out: Sequence[NDArray[Any]], check: Callable[[], None]) -> None:
        """Make rows lo..hi of batch `index` into `out`, one writable C-contiguous array of hi - lo rows per field.

        Calls `check` between samples; what it raises leaves as it is, and `out` is then garbage.

        Raises:
            SampleError: a sample cannot be read or processed; `__cause__` is the original.
            IndexError: the plan has no such rows.
        """
        assert self._rows is not None, "this preparation has no layout: collect, not make"
        plan = self._begun()
        self._rows.fill(plan, plan.ids(index, lo, hi), out, check)

    def expect(self, index: int, lo: int, hi: int) -> None:
        """Rows lo..hi of batch `index` will be made soon: the first of them are read ahead. Never fails.

        While rows are made, those behind them are read ahead anyway.
        """
        if self._rows is not None and self._rows.ahead:
            with contextlib.suppress(IndexError):
                ids = self._begun().ids(index, lo, hi)
                self._rows.expect(ids[: self._rows.ahead].tolist())

    def collect(
        self, index: int, lo: int, hi: int, check: Callable[[], None]
    ) -> tuple[list[NDArray[Any] | Column], bytes]:
        """(arrays, skeleton) of rows lo..hi of batch `index`, for preparations without layout; see `python.unpack`.

        Raises:
            SampleError: the data set raised for a sample, or a sample cannot be batched with the others.
            DataError: `collate_fn` raised, or the batch cannot be pickled.
            IndexError: the plan has no such rows.
        """
        plan = self._begun()
        ids = plan.ids(index, lo, hi).tolist()
        samples = self._fetcher.fetch(plan, ids, check)
        collate_fn = self._preparation.collate_fn
        if collate_fn is None:
            batch = collate(samples, ids, defer=True)
        else:
            self._fetcher.seed_batch(plan, ids)
            batch = _called(collate_fn, samples, ids)
        try:
            return pack(batch, keep_numpy=collate_fn is not None)
        except Exception as error:
            culprit = why_unpicklable(batch, "batch")
            raise DataError(f"the batch of samples {ids} cannot leave its process: {culprit or error}") from error

    @staticmethod
    def kernels() -> dict[str, str]:
        """Versions of the libraries that make the pixels."""
        return decode.kernels()

    def _begun(self) -> Plan | ListedPlan:
        assert self._plan is not None, "begin comes before make"
        return self._plan


def _called(collate_fn: Callable[[list[Any]], Any], samples: list[Any], ids: list[int]) -> Any:
    try:
        return collate_fn(samples)
    except Exception as error:
        raise DataError(f"collate_fn, for samples {ids}: {type(error).__name__}: {error}") from error


def _fingerprint(dataset: Any, recipe: Recipe | None) -> str:
    kind = type(dataset)
    data = (
        dataset.fingerprint if isinstance(dataset, Source) else f"{kind.__module__}.{kind.__qualname__} {len(dataset)}"
    )
    return digest(data.encode(), (recipe.digest if recipe else "").encode())
