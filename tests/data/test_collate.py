"""collate: torch's default_collate in all but two cases, and messages that name the sample."""

import collections
import dataclasses
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import default_collate

from ddlp.data.collate import collate
from ddlp.data.python import Column, pack, unpack
from ddlp.errors import SampleError
from tests.data.making import joined

Point = collections.namedtuple("Point", "x y")


class Marked(np.ndarray):
    """A kind of array of its own."""


class Checked(dict):
    """A mapping whose code looks at its values."""

    def update(self, other):
        assert other["x"].ndim == 3
        super().update(other)


@dataclasses.dataclass
class Item:
    image: np.ndarray
    name: str
    label: int


def through(batch):
    arrays, skeleton = pack(batch, keep_numpy=False)
    return unpack(skeleton, [torch.from_numpy(joined(array)) for array in arrays])


def assert_same(ours, theirs):
    """The same structure and bits; torch makes lists of tuples, and tuples of strings inside of sequences."""
    if isinstance(theirs, torch.Tensor):
        tensor = ours if isinstance(ours, torch.Tensor) else torch.from_numpy(ours)
        assert tensor.dtype == theirs.dtype
        assert torch.equal(tensor, theirs)
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs)
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif dataclasses.is_dataclass(theirs):
        assert type(ours) is type(theirs)
        assert_same(vars(ours), vars(theirs))
    elif isinstance(theirs, (tuple, list)):
        strings = isinstance(theirs[0], (str, bytes))
        assert type(ours) in ({list} if strings else {type(theirs), tuple})
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def leaf(draw):
    """A function of a random generator that gives one sample's value, always of the same form."""
    dtype = draw(st.sampled_from(["uint8", "int16", "int64", "float16", "float32", "float64", "bool"]))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    return draw(
        st.sampled_from(
            [
                lambda r: int(r.integers(-(2**62), 2**62)),
                lambda r: float(r.random()),
                lambda r: bool(r.integers(2)),
                lambda r: str(r.random()),
                lambda r: r.bytes(3),
                lambda r: r.integers(0, 2, shape).astype(dtype),
                lambda r: np.dtype(dtype).type(r.integers(0, 2)),
                lambda r: torch.from_numpy(np.asarray(r.integers(0, 2, shape)).astype(dtype)),
                lambda r: torch.tensor(r.random(), dtype=torch.bfloat16),
            ]
        )
    )


@st.composite
def forms(draw, depth=2):
    """A function of a random generator that gives samples of one structure."""
    kind = draw(st.sampled_from(["leaf", "tuple", "list", "dict", "ordered", "point"])) if depth else "leaf"
    if kind == "leaf":
        return leaf(draw)
    parts = [draw(forms(depth - 1)) for _ in range(2 if kind == "point" else draw(st.integers(1, 3)))]
    build = {
        "tuple": tuple,
        "list": list,
        "dict": lambda values: dict(enumerate(values)),
        "ordered": lambda values: collections.OrderedDict(enumerate(values)),
        "point": lambda values: Point(*values),
    }[kind]
    return lambda r: build([part(r) for part in parts])


@given(form=forms(), count=st.integers(1, 4), seed=st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_it_is_default_collate(form, count, seed):
    """For nested tuples, lists, dicts and named tuples of every leaf, the batch has torch's structure and bits."""
    random = np.random.default_rng(seed)
    samples = [form(random) for _ in range(count)]
    assert_same(collate(samples, range(count)), default_collate(samples))


@pytest.mark.parametrize("samples", [[1, 2.5], [2.5, 1], [True, 2], [True, False], [True, 0.5], [2.5, True]])
def test_mixed_numbers_get_torch_s_dtype(samples):
    """Integers, floats and truth values in one batch become what torch makes of them."""
    assert_same(collate(samples, [0, 1]), default_collate(samples))


def test_a_tuple_stays_a_tuple():
    """(x, y) samples give an (x, y) batch, at every level, and strings a list."""
    batch = collate([(1, (2.0, "a")), (3, (4.0, "b"))], [0, 1])
    assert type(batch) is tuple
    assert type(batch[1]) is tuple
    assert batch[1][1] == ["a", "b"]
    assert type(collate([[1], [2]], [0, 1])) is list


def test_named_tuples_and_dict_kinds_are_kept():
    """A named tuple keeps its type and a defaultdict its factory."""
    assert isinstance(collate([Point(1, 2), Point(3, 4)], [0, 1]), Point)
    counts = collections.defaultdict(int, a=1)
    assert collate([counts, counts], [0, 1]).default_factory is int


def test_dataclasses_are_batched_by_field():
    """A dataclass becomes one of its kind with a batch in each field."""
    batch = collate([Item(np.zeros(2), "a", 1), Item(np.ones(2), "b", 2)], [0, 1])
    assert isinstance(batch, Item)
    assert (batch.image.shape, batch.name, batch.label.tolist()) == ((2, 2), ["a", "b"], [1, 2])


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [(np.zeros((3, 4)), 0), (np.zeros((3, 4)), 0), (np.zeros((3, 5)), 0)],
            r"shape \(3, 5\).*30 has \(3, 4\).*at \[0\]",
        ),
        ([torch.zeros(2), torch.zeros(2), torch.zeros(3)], r"shape \(3,\).*30 has \(2,\)"),
        ([{"a": [np.zeros(1)]}, {"a": [np.zeros(1)]}, {"a": [3]}], r"no array.*at \['a'\]\[0\]"),
        ([{"a": 1}, {"a": 1}, {"b": 1}], r"keys \['b'\].*30 has \['a'\]"),
        ([{"a": 1}, {"a": 1}, 7], "keys int"),
        ([(1, 2), (1, 2), (1,)], "length 1.*30 has 2"),
        ([(1, 2), (1, 2), None], "length NoneType"),
        ([1.5, 2, None], "type NoneType.*30 has float"),
        ([Point(1, 2), Point(1, 2), Point(1, None)], r"type NoneType.*at \[1\]"),
        ([Item(1, "", 1), Item(1, "", 1), 3], "type int.*30 has Item"),
    ],
)
def test_samples_that_differ_are_named(samples, words):
    """Different shapes, types, lengths and keys are a SampleError with both samples, both values, place and way out."""
    with pytest.raises(SampleError, match=words) as caught:
        collate(samples, [30, 10, 20])
    assert caught.value.sample_id == 20
    assert "collate_fn" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "NoneType"),
        (object(), "object"),
        (np.array(["a"]), "dtype <U1"),
        ({"a": (1j,)}, r"complex at \['a'\]\[0\]"),
    ],
)
def test_what_cannot_be_batched_is_named(value, kind):
    """A value of no batchable kind is a SampleError with its type, its place and a way out."""
    with pytest.raises(SampleError, match=f"{kind}.*collate_fn"):
        collate([value], [4])


def test_integers_over_64_bits_are_named():
    """A Python integer that no tensor can hold is a SampleError, not an overflow or an object array."""
    with pytest.raises(SampleError, match=r"\['id'\].*64 bits"):
        collate([{"id": 1 << 63}], [4])


LARGE = np.random.default_rng(0).random((3, 70, 50))  # samples of 28000 bytes


@pytest.mark.parametrize(
    "sample",
    [
        lambda k: LARGE[k],
        lambda k: (LARGE[k].T, k, [LARGE[k], "a"]),
        lambda k: {"x": torch.from_numpy(LARGE[k]), "y": LARGE[k].astype(">f4").astype("f4")},
        lambda k: torch.from_numpy(LARGE[k]).bfloat16(),
        lambda k: torch.from_numpy(LARGE[k]).requires_grad_(k == 1),
        lambda k: torch.from_numpy(LARGE[k]).to(torch.float32 if k else torch.float64),
        lambda k: LARGE[k].astype(np.float32 if k else np.float64),
        lambda k: LARGE[k].view(Marked),
        lambda k: Item(LARGE[k], "a", k),
        lambda k: Checked(x=LARGE[k]),
    ],
)
def test_large_arrays_that_are_joined_late_are_the_same(sample):
    """Deferred or not, the batch has the same structure and bits once it is packed and unpacked."""
    samples = [sample(k) for k in range(3)]
    now, late = (through(collate(samples, range(3), defer=defer)) for defer in (False, True))
    assert_same(late, now)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_large_arrays_are_joined_where_they_are_packed(make):
    """What is large and alike in Python's own containers is deferred, and nothing else."""
    large = [(make(row), make(row[:1, :1])) for row in LARGE]
    deferred, small = collate(large, range(3), defer=True)
    assert (type(deferred), type(small)) == (Column, type(collate(large, range(3))[1]))
    differing = [make(LARGE[0]), make(LARGE[1][:50])]
    with pytest.raises(SampleError, match=r"shape \(50, 50\) where sample 0 has \(70, 50\)"):
        collate(differing, range(2), defer=True)


def test_no_torch_is_imported():
    """Where no sample holds a tensor, batches are made without loading torch."""
    code = (
        "import sys, numpy as np, ddlp.data.maker as m;"
        "from ddlp.data.sampling import Plan;"
        "maker = m.Preparation([(np.zeros(2), 1, 'a')] * 3).maker();"
        "maker.begin(Plan(3, 3, False, True, 0, 0));"
        "maker.collect(0, 0, 3, lambda: None);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
