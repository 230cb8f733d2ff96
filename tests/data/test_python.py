"""Packing batches of any structure, seeding, and naming what cannot be pickled."""

import functools
import pickle

import numpy as np
import pytest
import torch

from ddlp.data.python import Column, pack, unpack, why_unpicklable
from tests.data.making import joined


def through(batch, keep_numpy=False):
    """Pack, cross as plain bytes, unpack."""
    arrays, skeleton = pack(batch, keep_numpy=keep_numpy)
    arrays = [joined(array) for array in arrays]
    tensors = [torch.from_numpy(np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape)) for a in arrays]
    return unpack(skeleton, tensors)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "uint16",
        "uint64",
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_of_every_dtype_survive(dtype, shape):
    """Any dense tensor comes back with dtype, shape and bits."""
    tensor = torch.arange(6).reshape(2, 3)[: shape[0] if shape else None].to(getattr(torch, dtype))
    tensor = tensor if shape else tensor[1, 2]
    again = through(tensor)
    assert again.dtype == tensor.dtype
    assert torch.equal(again, tensor)


def test_structure_and_leaves_come_back():
    """Everything around the leaves comes back as it was; numpy leaves become tensors."""
    x, y = np.arange(6.0).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)
    again = through({"x": x, "rest": [(y, "name", None), {3, 4}], "same": y})
    assert isinstance(again["x"], torch.Tensor)
    np.testing.assert_array_equal(again["x"], x)
    assert again["rest"][0][1:] == ("name", None)
    assert again["rest"][1] == {3, 4}
    assert torch.equal(again["same"], y)
    assert torch.equal(again["rest"][0][0], y)


def test_numpy_leaves_of_a_collate_fn_stay_numpy():
    """With keep_numpy numpy arrays come back as such, and tensors as tensors."""
    again = through([np.arange(3), torch.arange(3)], keep_numpy=True)
    assert type(again[0]) is np.ndarray
    assert type(again[1]) is torch.Tensor


def test_array_bytes_are_not_pickled():
    """The skeleton stays small however large the arrays; one array in two places is carried once."""
    big = np.zeros((1000, 1000))
    view = torch.zeros(50, 40)[:, ::2]
    arrays, skeleton = pack((big, [big, view]), keep_numpy=False)
    assert len(skeleton) < 200
    assert [array.shape for array in arrays] == [(1000, 1000), (50, 20)]
    assert arrays[0] is big
    again = unpack(skeleton, [torch.from_numpy(array) for array in arrays])
    assert again[0] is again[1][0]


def test_temporary_arrays_are_not_confused():
    """Arrays that objects make while they are pickled are told apart, though their ids may repeat."""

    numbers = through([_Fresh(k) for k in range(50)])
    assert [int(fresh.array[0]) for fresh in numbers] == list(range(50))


class _Fresh:
    """Holds an array only while it is pickled."""

    def __init__(self, number):
        self.number = number

    def __getstate__(self):
        return {"array": np.full(3, self.number)}


@pytest.mark.parametrize(
    "value",
    [np.array(["a", "bc"]), np.array([1j]), np.array([None, "x"], object), np.datetime64("2020-01-01"), np.float32(3)],
)
def test_arrays_that_are_no_leaves_are_pickled(value):
    """Arrays of strings, complex numbers and objects, and numpy scalars, come back as themselves."""
    again = through([value])[0]
    assert type(again) is type(value)
    np.testing.assert_array_equal(again, value)


def test_unusual_tensors_are_pickled():
    """Complex and sparse tensors, subclasses, and tensors with a gradient come back as themselves."""
    values = [
        torch.tensor([1j]),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True),
    ]
    for value in values:
        again = through(value)
        assert type(again) is type(value)
        assert (again.layout, again.requires_grad) == (value.layout, value.requires_grad)
        assert torch.equal(again.to_dense(), value.to_dense())


def test_foreign_byte_order_is_made_native():
    """Arrays in the other byte order keep their values."""
    values = np.arange(4, dtype=">i4")
    assert through(values, keep_numpy=True).tolist() == [0, 1, 2, 3]
    assert through(values).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 3, 4), (1, 1)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32"])
def test_a_column_is_one_array_of_the_batch(shape, dtype):
    """Arrays and tensors that stand for their stack become it where they are packed, whatever their strides."""
    values = [np.arange(24).reshape(4, 6)[k : k + 1].repeat(24, 0).T.astype(dtype) for k in range(4)]
    values = [np.resize(value, shape[::-1]).T for value in values]
    assert torch.equal(through([Column(values)])[0], torch.from_numpy(np.stack(values)))
    tensors = [torch.from_numpy(value) for value in values]
    assert torch.equal(through([Column(tensors)])[0], torch.stack(tensors))


class Holder:
    def __init__(self, **values):
        self.__dict__.update(values)

    def method(self):
        return self


def test_what_cannot_be_pickled_is_named_by_its_path():
    """The path leads through attributes, items, partials and bound methods to the thing itself."""
    culprit = lambda x: x  # noqa: E731
    fine = np.zeros(3)
    cases = {
        "dataset": culprit,
        "dataset.transform.fns[1]": Holder(ok=fine, transform=Holder(fns=[fine, culprit])),
        "dataset['k'].x": {"a": 1, "k": Holder(x=culprit)},
        "dataset.keywords['key']": functools.partial(print, 1, key=culprit),
        "dataset.args[0]": functools.partial(print, culprit),
        "dataset.__self__.x": Holder(x=culprit).method,
    }
    for path, obj in cases.items():
        assert why_unpicklable(obj, "dataset") == f"{path}: {culprit!r}"


def test_what_can_be_pickled_is_not_blamed():
    """The empty string where there is nothing to say."""
    assert why_unpicklable(Holder(a=[1], b=np.zeros(10**6)), "dataset") == ""


def test_the_search_for_it_is_bounded():
    """Cycles and endless depth end with the last path that was reached."""
    loop = Holder(x=lambda: 0)
    loop.me = loop
    assert why_unpicklable(loop, "d").startswith("d.")
    deep = lambda: 0  # noqa: E731
    for _ in range(100):
        deep = Holder(next=deep)
    assert why_unpicklable(deep, "d").count(".next") == 16


def test_an_object_that_refuses_by_itself_is_named():
    """Where no part is to blame, the object is."""

    class Refuses:
        def __reduce__(self):
            raise pickle.PicklingError("no")

        def __repr__(self):
            return "<refuses>"

    assert why_unpicklable([Refuses()], "d") == "d[0]: <refuses>"
