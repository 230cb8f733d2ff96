"""Preparation and Maker: free batches, abandoning, failing, and what an agent is told."""

import pickle
import random

import numpy as np
import pytest
import torch

from ddlp.data import recipes
from ddlp.data.maker import Preparation
from ddlp.data.ops import CenterCrop, Map
from ddlp.data.recipe import Recipe
from ddlp.data.sampling import Plan, listed
from ddlp.data.sources import CIFAR10, ArrayDataset, ImageFolder, write_cifar10
from ddlp.errors import DataError, SampleError, UsageError
from tests.data.making import (
    Broken,
    Pairs,
    batches,
    brighter,
    collected,
    fails,
    idle,
    plan_of,
)


class Numbers:
    """A data set whose samples draw from every global generator."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"id": index, "noise": (random.random(), np.random.rand(), torch.rand(2))}


def ids_and_shapes(samples):
    return np.array([label for _, label, _ in samples]), [image.size for image, _, _ in samples]


def test_python_batches_have_default_collate_s_form():
    """Without recipe a batch of any data set keeps its structure, with tensors for numbers."""
    batch = collected(Preparation(Numbers()))[0]
    assert batch["id"].dtype == torch.int64
    assert type(batch["noise"]) is tuple
    assert batch["noise"][2].shape == (4, 2)


def test_a_collate_fn_replaces_everything(tmp_path):
    """collate_fn gets the list of samples; what it returns comes back, numpy arrays as numpy arrays."""
    preparation = Preparation(Pairs(), collate_fn=ids_and_shapes)
    assert preparation.layout is None
    plan = plan_of(preparation)
    labels, sizes = collected(preparation, plan)[0]
    assert type(labels) is np.ndarray
    np.testing.assert_array_equal(labels, plan.ids(0) % 3)
    assert sizes == [(36, 40)] * 4
    raw = Preparation(ArrayDataset(np.arange(6)), collate_fn=list)
    assert raw.layout is None
    assert all(type(sample) is tuple for sample in collected(raw)[0])


def test_a_sample_s_randomness_is_its_own():
    """Python's, numpy's and torch's global generators are a function of seed, epoch and sample, not of the batch."""
    preparation = Preparation(Numbers())

    def noise(batch_size, epoch=0):
        plan = plan_of(preparation, batch_size, epoch)
        rows = {}
        for index, batch in enumerate(collected(preparation, plan)):
            for row, id_ in enumerate(plan.ids(index).tolist()):
                rows[id_] = [leaf[row].tolist() for leaf in batch["noise"]]
        return rows

    assert noise(1) == noise(3)
    assert all(noise(3)[id_] != noise(3, epoch=1)[id_] for id_ in range(7))


def test_listed_plans_may_repeat_samples():
    """A sampler may choose any ids, more than once, in batches of any size."""
    preparation = Preparation(ArrayDataset(np.arange(10)))
    made = batches(preparation, listed([[3, 3, 9], [0]], 0, 0))
    assert [out[0].tolist() for out in made] == [[3, 3, 9], [0]]


def test_worker_init_fn_runs_in_the_worker():
    """worker_init_fn is called with the worker's number when its maker is made, not before."""
    calls = []
    preparation = Preparation(ArrayDataset(np.arange(3)), worker_init_fn=calls.append)
    assert calls == []
    preparation.maker(7)
    assert calls == [7]
    assert preparation.python


class Abandon(BaseException):
    """Raised by a check."""


@pytest.mark.parametrize(
    "build",
    [
        lambda: Preparation(Pairs(40), Recipe([CenterCrop(8)])),
        lambda: Preparation(ArrayDataset(np.zeros((40, 600, 600, 3), np.uint8)), Recipe([CenterCrop(8)])),
        lambda: Preparation(ArrayDataset(np.zeros((40, 600, 600)))),
        lambda: Preparation(Pairs(40), collate_fn=len),
    ],
)
@pytest.mark.parametrize("error", [Abandon("given up"), RuntimeError("given up")])
def test_check_can_abandon_a_batch(build, error):
    """What check raises leaves make and collect as it is, soon, and the maker goes on with other batches."""
    preparation = build()
    maker = preparation.maker()
    plan = plan_of(preparation, 40)
    maker.begin(plan)
    left = [3]

    def check():
        left[0] -= 1
        if left[0] == 0:
            raise error

    def make(check):
        if preparation.layout is None:
            return maker.collect(0, 0, 40, check)
        out = [np.zeros((40, *field.shape), field.dtype) for field in preparation.layout.fields]
        return maker.make(0, 0, 40, out, check)

    with pytest.raises(type(error), match="given up"):
        make(check)
    make(idle)


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("k"), SampleError("mine", 77, "/file"), DataError("odd")]
)
@pytest.mark.parametrize("recipe", [None, Recipe([CenterCrop(8)])])
def test_what_a_data_set_raises_becomes_the_sample_s_error(error, recipe):
    """Any exception of user code is a SampleError with the id that was asked for, the message, and the original."""
    preparation = Preparation(Broken(error), recipe, collate_fn=None if recipe else len)
    with pytest.raises(SampleError) as caught:
        (collected if recipe is None else batches)(preparation)
    assert caught.value.sample_id == 5
    assert repr(caught.value.__cause__) == repr(error)
    assert str(error.args[0]) in str(caught.value)
    assert caught.value.path == getattr(error, "path", None)


def test_what_collate_fn_raises_names_the_samples():
    """An exception in collate_fn is a DataError with the ids and the original; so is a batch that cannot be packed."""
    preparation = Preparation(Pairs(3), collate_fn=fails)
    maker = preparation.maker()
    maker.begin(plan_of(preparation, 3))
    with pytest.raises(DataError, match=r"collate_fn, for samples \[.*RuntimeError: no luck") as caught:
        maker.collect(0, 0, 3, idle)
    assert isinstance(caught.value.__cause__, RuntimeError)
    unpicklable = Preparation(Pairs(3), collate_fn=lambda samples: [lambda: 0])
    maker = unpicklable.maker()
    maker.begin(plan_of(preparation, 3))
    with pytest.raises(DataError, match=r"batch\[0\]: <function"):
        maker.collect(0, 0, 3, idle)


@pytest.mark.parametrize(
    "plan", [Plan(9, 2, False, False, 0, 0), Plan(11, 2, False, False, 0, 0), listed([[10]], 0, 0)]
)
def test_a_plan_for_other_data_is_refused(plan):
    """A plan of another number of samples, or with ids that do not exist, is a UsageError at begin."""
    with pytest.raises(UsageError, match="data set has 10"):
        Preparation(ArrayDataset(np.arange(10))).maker().begin(plan)


def test_an_agent_prepares_the_same(photos, tmp_path):
    """What describe says, described opens: the same samples, layout, fingerprint and bytes."""
    cases = [
        Preparation(ImageFolder(photos), recipes.imagenet_train(32)),
        Preparation(CIFAR10(write_cifar10(tmp_path, 20)), recipes.cifar_train(4)),
        Preparation(ArrayDataset(np.arange(12.0).reshape(6, 2), np.arange(6)).saved(tmp_path)),
    ]
    for host in cases:
        agent = Preparation.described(*host.describe())
        assert (agent.samples, agent.layout, agent.fingerprint) == (host.samples, host.layout, host.fingerprint)
        for one, other in zip(batches(host)[0], batches(agent)[0], strict=True):
            np.testing.assert_array_equal(one, other)
    assert len({host.fingerprint for host in cases}) == 3


def test_the_fingerprint_depends_on_data_and_recipe(photos):
    """Another recipe or another data set is another fingerprint."""
    folder = ImageFolder(photos)
    made = [Preparation(folder, recipes.imagenet_train(size)).fingerprint for size in (32, 33)]
    assert len({*made, Preparation(folder, collate_fn=len).fingerprint, Preparation(Pairs()).fingerprint}) == 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Preparation(Pairs(), recipes.cifar_train()), "Pairs cannot be described"),
        (lambda: Preparation(ArrayDataset(np.arange(3))), "saved"),
        (lambda: Preparation(ArrayDataset(np.arange(3)), collate_fn=len), "collate_fn"),
        (lambda: Preparation(ArrayDataset(np.arange(3)), worker_init_fn=print), "worker_init_fn"),
        (lambda: Preparation(ArrayDataset(np.zeros((3, 9, 9)), np.arange(3)), Recipe([Map(brighter)])), "memory|Map"),
    ],
)
def test_what_cannot_be_described_is_named(build, words):
    """Parts that exist in this process only are a UsageError that names them and what to do."""
    with pytest.raises(UsageError, match=words):
        build().describe()


@pytest.mark.parametrize(("dataset", "recipe"), [(b"", b"null"), (b"{}", b"null"), (b"\xff", b"null")])
def test_a_wrong_description_is_refused(dataset, recipe):
    """Bytes that are no description are a UsageError."""
    with pytest.raises(UsageError):
        Preparation.described(dataset, recipe)


def test_preparations_pickle_small():
    """The large parts of a preparation travel out of band."""
    preparation = Preparation(ArrayDataset(np.zeros((1000, 64))), worker_init_fn=print)
    assert len(pickle.dumps(preparation, protocol=5, buffer_callback=lambda _: None)) < 1500


def test_repr_shows_data_and_recipe():
    """One line: the data set and the recipe."""
    preparation = Preparation(ArrayDataset(np.zeros((4, 9, 9), np.uint8)), Recipe([CenterCrop(3)]))
    assert repr(preparation) == "Preparation(ArrayDataset(uint8(4, 9, 9)), Recipe([CenterCrop(size=3)]))"
