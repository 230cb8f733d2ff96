"""ArrayDataset: rows of arrays in memory and in files."""

import os
import pickle

import numpy as np
import pytest
import torch

from ddlp.data.arrays import ArrayDataset
from ddlp.errors import DataError, UsageError


def arrays(n=6):
    return np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3), np.arange(n)


def test_a_sample_is_a_row_of_each_array():
    """Indexing gives a tuple with one row of each array, from both ends, and IndexError outside."""
    x, y = arrays()
    data = ArrayDataset(x, y)
    assert len(data) == 6
    row, label = data[-1]
    np.testing.assert_array_equal(row, x[5])
    assert label == 5
    assert len(list(data)) == 6
    for index in (6, -7):
        with pytest.raises(IndexError):
            data[index]


def test_anything_like_an_array_is_taken():
    """Lists and CPU tensors are arrays too."""
    data = ArrayDataset([[1.0], [2.0]], torch.tensor([3, 4]))
    assert [array.dtype.name for array in data.arrays] == ["float64", "int64"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "at least one"),
        ((np.zeros(3), np.zeros(4)), r"length: \(3,\), \(4,\)"),
        ((np.array(3.0),), "array 0"),
        ((np.zeros(3), np.array(["a", "b", "c"])), "array 1"),
        ((np.zeros(3, complex),), "complex128"),
        ((np.array([None]),), "object"),
    ],
)
def test_what_cannot_be_rows_of_numbers_is_refused(given, words):
    """No arrays, different lengths, no first dimension and odd dtypes are a UsageError that names them."""
    with pytest.raises(UsageError, match=words):
        ArrayDataset(*given)


def test_npy_files_are_mapped_not_read(tmp_path):
    """A path is mapped, pickles as a path, and is mapped again."""
    x, y = arrays()
    np.save(tmp_path / "x.npy", x)
    data = ArrayDataset(tmp_path / "x.npy", y)
    assert isinstance(data.arrays[0], np.memmap)
    again = pickle.loads(pickle.dumps(data, protocol=5))
    assert isinstance(again.arrays[0], np.memmap)
    np.testing.assert_array_equal(again.arrays[0], x)
    np.testing.assert_array_equal(again.arrays[1], y)


def test_arrays_in_memory_pickle_out_of_band():
    """Array bytes travel as buffers, not inside the pickle."""
    data = ArrayDataset(np.zeros((1000, 100)), np.zeros(1000))
    buffers = []
    pickled = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(pickled) < 1000
    again = pickle.loads(pickled, buffers=buffers)
    assert np.shares_memory(again.arrays[0], data.arrays[0])


@pytest.mark.parametrize("content", [None, b"", b"no array", "object"])
def test_a_file_that_is_no_array_is_named(tmp_path, content):
    """A missing file, other bytes, and arrays of Python objects are a DataError with the path."""
    path = tmp_path / "x.npy"
    if content == "object":
        np.save(path, np.array([{}]), allow_pickle=True)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy"):
        ArrayDataset(path)


def test_saved_arrays_are_the_same_and_can_be_described(tmp_path):
    """saved() writes whole files, and gives the same data with the same fingerprint, which an agent can open."""
    memory = ArrayDataset(*arrays())
    with pytest.raises(UsageError, match="saved"):
        memory.describe()
    saved = memory.saved(tmp_path / "new")
    assert sorted(os.listdir(tmp_path / "new")) == ["array0.npy", "array1.npy"]
    for one, other in zip(saved.arrays, memory.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    assert saved.fingerprint == memory.fingerprint
    assert list(saved.describe()["paths"]) == [str(tmp_path / "new" / f"array{k}.npy") for k in range(2)]


def test_fingerprints_tell_shapes_and_dtypes_apart():
    """Another length, shape or dtype is another fingerprint."""
    forms = [((4, 2), "f4"), ((4, 2), "f8"), ((5, 2), "f4"), ((4, 2, 1), "f4")]
    assert len({ArrayDataset(np.zeros(shape, dtype)).fingerprint for shape, dtype in forms}) == 4


def test_repr_shows_the_arrays():
    """One line: dtype and shape of each array."""
    assert repr(ArrayDataset(*arrays())) == "ArrayDataset(float32(6, 2, 3), int64(6,))"
