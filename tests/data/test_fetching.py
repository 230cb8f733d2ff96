"""Fetching samples one by one or many at once: the same samples, and errors that name one."""

import random

import pytest
import torch

from ddlp.data.fetching import Fetcher
from ddlp.data.maker import Preparation
from ddlp.data.sampling import Plan
from ddlp.errors import DataError, SampleError
from tests.data.making import collected, idle

PLAN = Plan(100, 10, drop_last=False, shuffle=True, seed=3, epoch=1)


class Singly:
    """Sample i is (i, a number of its own); `calls` are the ids of each call."""

    def __init__(self, draws=True, bad=()):
        self.draws = draws
        self.bad = bad
        self.calls = []

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.calls.append([index])
        return self.made(index)

    def made(self, index):
        if index in self.bad:
            raise KeyError(index)
        return index, random.random() if self.draws else 0.5


class AtOnce(Singly):
    def __getitems__(self, indices):
        self.calls.append(list(indices))
        return [self.made(index) for index in indices]


def fetched(dataset, *batches):
    fetcher = Fetcher(dataset)
    return [sample for ids in batches for sample in fetcher.fetch(PLAN, list(ids), idle)]


@pytest.mark.parametrize("draws", [False, True])
def test_samples_are_the_same_at_once(draws):
    """Where a data set has __getitems__ the samples, their order and their draws are those of __getitem__."""
    batches = [range(20), range(50, 20, -3), [7, 7, 7]]
    singly, at_once = fetched(Singly(draws), *batches), fetched(AtOnce(draws), *batches)
    assert at_once == singly
    assert [index for index, _ in singly] == [id_ for ids in batches for id_ in ids]


def test_batches_are_asked_for_as_a_whole():
    """A data set that draws nothing soon gets whole batches; one that draws gets one sample at a time."""
    for draws, largest in ((False, 10), (True, 1)):
        dataset = AtOnce(draws)
        fetched(dataset, *(range(k, k + 10) for k in range(0, 100, 10)))
        assert max(map(len, dataset.calls[5:])) == largest
        assert all(type(index) is int for call in dataset.calls for index in call)


def test_torch_s_subset_is_asked_at_once():
    """Subset, which has __getitems__, gives the samples of what it is a subset of, with draws by its own numbering."""
    subset = torch.utils.data.Subset(AtOnce(draws=True), [9, 5, 1])
    indices, drawn = zip(*fetched(subset, range(3)), strict=True)
    assert indices == (9, 5, 1)
    assert list(drawn) == [number for _, number in fetched(Singly(), range(3))]


@pytest.mark.parametrize("kind", [Singly, AtOnce])
@pytest.mark.parametrize("draws", [False, True])
def test_a_bad_sample_is_named(kind, draws):
    """An exception is a SampleError with the id of the sample, however it was asked for."""
    with pytest.raises(SampleError, match="KeyError") as caught:
        fetched(kind(draws, bad=(17,)), range(10), range(10, 20))
    assert caught.value.sample_id == 17
    assert isinstance(caught.value.__cause__, KeyError)


class Short(AtOnce):
    def __getitems__(self, indices):
        return super().__getitems__(indices)[:-1]


class Crooked(AtOnce):
    def __getitems__(self, indices):
        raise ZeroDivisionError("oh")


@pytest.mark.parametrize(("kind", "words"), [(Short, "0 samples for 1 ids"), (Crooked, "__getitem__ for none: oh")])
def test_a_broken_getitems_is_named(kind, words):
    """Too few samples, or an exception that no sample is to blame for, is a DataError that says so."""
    with pytest.raises(DataError, match=words):
        fetched(kind(), range(10))


def test_check_is_called_between_samples():
    """What `check` raises leaves as it is, even an ordinary exception."""
    left = [5]

    def check():
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("given up")

    for kind in (Singly, AtOnce):
        left[0] = 2
        with pytest.raises(RuntimeError, match="given up"):
            Fetcher(kind(draws=False)).fetch(PLAN, list(range(20)), check)


class Mixing:
    """A collate_fn that draws, as mixup does."""

    def __call__(self, samples):
        return [index for index, _ in samples], random.random()


def test_what_collate_fn_draws_is_the_batch_s_own():
    """Draws of a collate_fn differ from batch to batch, and are the same each time a batch is made."""
    preparation = Preparation(Singly(draws=False), collate_fn=Mixing())
    ours, again = collected(preparation, PLAN), collected(preparation, PLAN)
    assert ours == again
    assert len({drawn for _, drawn in ours}) == len(PLAN)
    maker = preparation.maker()
    maker.begin(PLAN)
    assert maker.collect(4, 0, 10, idle) == maker.collect(4, 0, 10, idle)
