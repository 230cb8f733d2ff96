"""CIFAR-10: the official files of both forms, and what is refused."""

import os
import pickle
import struct

import numpy as np
import pytest

from ddlp.data.cifar import CIFAR10, write_cifar10
from ddlp.errors import DataError, UsageError


def python2_pickle(images, labels):
    """The bytes of an official file: protocol 2 as Python 2 wrote it, with byte strings and old module names."""

    def string(data):
        return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<i", len(data)) + data

    def integer(value):
        return b"J" + struct.pack("<i", value)

    reconstruct = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b") + b"\x87R"
    )
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) * 2 + integer(0) + b"tb"
    state = (
        b"(" + integer(1) + integer(len(labels)) + integer(3072) + b"\x86" + dtype + b"\x89" + string(images.tobytes())
    )
    array = reconstruct + state + b"tb"
    numbers = b"](" + b"".join(integer(label) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + numbers + b"u."


def write_official(root, count=4):
    """A folder as the official archive holds it; returns the planar images and labels of the training set."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (6, count, 3072), dtype=np.uint8)
    labels = random.integers(0, 10, (6, count))
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    for name, part, numbers in zip(names, images, labels.tolist(), strict=True):
        (folder / name).write_bytes(python2_pickle(part, numbers))
    return images[:5].reshape(-1, 3072), labels[:5].ravel()


def test_official_files_of_python_2_are_read(tmp_path):
    """Files as Python 2 pickled them: rows are channel after channel, labels int64."""
    images, labels = write_official(tmp_path)
    data = CIFAR10(tmp_path)
    assert [(array.shape, array.dtype.name) for array in data.arrays] == [((20, 32, 32, 3), "uint8"), ((20,), "int64")]
    np.testing.assert_array_equal(data.arrays[1], labels)
    np.testing.assert_array_equal(data.arrays[0][7, :, :, 2], images[7, 2048:].reshape(32, 32))
    assert len(CIFAR10(tmp_path, train=False)) == 4


def test_both_forms_hold_the_same_data(tmp_path):
    """The made-up set is the same in both forms, split as the official one, and known by its seed."""
    sets = [CIFAR10(write_cifar10(tmp_path / form, 53, seed=2, form=form)) for form in ("py", "bin")]
    for one, other in zip(*(data.arrays for data in sets), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(sets[0]) == 53
    assert len(CIFAR10(tmp_path / "py", train=False)) == 10
    assert sorted(os.listdir(tmp_path / "bin/cifar-10-batches-bin"))[-1] == "test_batch.bin"
    assert len(os.listdir(tmp_path / "py/cifar-10-batches-py")) == 6
    assert sets[0].fingerprint == sets[1].fingerprint
    other = CIFAR10(write_cifar10(tmp_path / "other", 53, seed=3))
    assert other.fingerprint != sets[0].fingerprint


def test_the_made_up_set_can_be_learnt(tmp_path):
    """A classifier by the nearest class mean is right on most test images."""
    root = write_cifar10(tmp_path, 500)
    x, y = CIFAR10(root).arrays
    means = np.stack([x[y == label].mean(0) for label in range(10)])
    x_test, y_test = CIFAR10(root, train=False).arrays
    distances = ((x_test[:, None].astype(float) - means) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == y_test).mean() > 0.9


def test_the_folder_itself_can_be_given(tmp_path):
    """root may be the folder that holds the batches."""
    write_cifar10(tmp_path, 10, form="bin")
    assert len(CIFAR10(tmp_path / "cifar-10-batches-bin")) == 10


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    """Anything but arrays and basic types in a file is a DataError, and nothing of it runs."""
    write_official(tmp_path)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(DataError, match=r"data_batch_3.*mkdir"):
        CIFAR10(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        pickle.dumps([1]),
        pickle.dumps({"labels": [1]}),
        pickle.dumps({"labels": [1, 2], "data": np.zeros((1, 3072), np.uint8)}, protocol=2),
        pickle.dumps({"labels": [1], "data": np.zeros((1, 3072))}, protocol=3),
        pickle.dumps({"labels": [10], "data": np.zeros((1, 3072), np.uint8)}, protocol=3),
        None,
    ],
)
def test_a_wrong_file_is_named(tmp_path, content):
    """Bytes of another kind, shape or range, and a missing file, are a DataError with the path."""
    write_official(tmp_path)
    path = tmp_path / "cifar-10-batches-py/data_batch_2"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="data_batch_2"):
        CIFAR10(tmp_path)


def test_a_torn_record_is_named(tmp_path):
    """A binary file that ends inside a record, or has a label over 9, is a DataError with the path."""
    write_cifar10(tmp_path, 20, form="bin")
    path = tmp_path / "cifar-10-batches-bin/data_batch_5.bin"
    whole = path.read_bytes()
    for content in (whole[:-1], b"\x0a" + whole[1:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"data_batch_5\.bin"):
            CIFAR10(tmp_path)


def test_a_folder_without_cifar_says_what_is_looked_for(tmp_path):
    """The DataError of a wrong root names it and both folders."""
    with pytest.raises(DataError, match="cifar-10-batches-py or cifar-10-batches-bin"):
        CIFAR10(tmp_path)


@pytest.mark.parametrize(("count", "form"), [(4, "py"), (10, "zip")])
def test_the_writer_checks_its_arguments(tmp_path, count, form):
    """Too few images and an unknown form are a UsageError."""
    with pytest.raises(UsageError):
        write_cifar10(tmp_path, count, form=form)
