"""The laws of the file store: safetensors files that others can read, of bounded size, whole or absent."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file

from ddlp.agent.protocol import CHECKED_NBYTES, Failed, Forget, Made, Make, checksums
from ddlp.agent.server import Epoch
from ddlp.agent.store import SAFETENSORS_DTYPES, FileStore
from ddlp.data.sampling import Plan
from ddlp.types import ITEM_NBYTES, Field, Layout
from tests.agent.conftest import ROWS


class Filler:
    """A maker that fills each field with its own number."""

    def make(self, index, lo, hi, out, check) -> None:
        for number, array in enumerate(out):
            check()
            array[...] = number % 2 if array.dtype == np.bool_ else number


def filled(store: FileStore, layout: Layout, rows: int = 3, ticket: int = 1) -> Made:
    plan = Plan(rows, rows, False, False, 0, 0)
    made = store.make(Make(ticket, 0, 0, rows), Epoch(Filler(), layout, plan), lambda: None)
    store.publish(made)
    return made


@pytest.fixture
def store(folder):
    store = FileStore(str(folder))
    yield store
    store.close()


def names(folder) -> list[str]:
    """Of batches, finished or not; without the files that wait for the next ones."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".spare"))


def test_the_safetensors_package_reads_the_files(serve, folder, opening, plan, arrays):
    """A batch file is a safetensors file with one tensor per field, holding exactly the samples of the plan."""
    host = serve(FileStore(str(folder)))
    host.begin(opening, plan)
    for ticket, index in enumerate((0, 3, 4), start=1):
        made = host.make(ticket, index, hi=plan.rows(index))
        tensors = load_file(made.path)
        ids = plan.ids(index)
        assert sorted(tensors) == ["array0", "array1"]
        assert (tensors["array0"] == arrays.arrays[0][ids]).all()
        assert tensors["array1"].tolist() == ids.tolist()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(ITEM_NBYTES)), min_size=1, max_size=6), st.integers(1, 4))
def test_every_layout_is_a_valid_file(dtypes, rows):
    """Whatever the dtypes and their order, every field arrives with its name, dtype, shape and values."""
    store = FileStore()
    try:
        layout = Layout(tuple(Field(f"field {k}", dtype, (2, k)) for k, dtype in enumerate(dtypes)))
        made = filled(store, layout, rows)
        tensors = load_torch_file(made.path)
        assert made.offset % 4096 == 0
        for number, field in enumerate(layout.fields):
            tensor = tensors[field.name]
            assert tensor.dtype is getattr(torch, field.dtype)
            assert tensor.shape == (rows, *field.shape)
            if field.dtype != "bfloat16":
                assert (tensor == (number % 2 if field.dtype == "bool" else number)).all()
    finally:
        store.close()


def test_every_dtype_has_its_name():
    """The two tables of dtypes agree."""
    assert SAFETENSORS_DTYPES.keys() == ITEM_NBYTES.keys()


def test_checksums_are_in_the_file_and_in_the_answer(store):
    """The header says of which parts they are; they are those of the bytes that lie there."""
    made = filled(store, Layout((Field("a", "uint8", (CHECKED_NBYTES,)), Field("b", "int16", ()))))
    with open(made.path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        assert file.tell() == made.offset
        payload = file.read()
    assert len(payload) == made.nbytes
    assert checksums(memoryview(payload)) == made.crcs
    assert [int(crc, 16) for crc in header["__metadata__"]["crc32"].split()] == list(made.crcs)
    assert header["__metadata__"]["crc32_of_each"] == str(CHECKED_NBYTES)


def test_the_host_never_sees_half_a_batch(store, folder):
    """While a batch is made, and when making it fails, there is no file under its name."""
    seen = []

    class Watching(Filler):
        def make(self, index, lo, hi, out, check) -> None:
            seen.extend(folder.glob("b*"))
            raise ZeroDivisionError

    layout = Layout((Field("a", "uint8", (100,)),))
    epoch = Epoch(Watching(), layout, Plan(3, 3, False, False, 0, 0))
    with pytest.raises(ZeroDivisionError):
        store.make(Make(1, 0, 0, 3), epoch, lambda: None)
    assert not seen
    assert not names(folder)
    filled(store, layout, ticket=2)
    assert names(folder) == ["b2.safetensors"]


def test_files_are_used_again_with_the_new_content(store, folder):
    """After Forget the file serves the next batch of the same form; the number of files stays what it was."""
    layout = Layout((Field("a", "uint8", (100,)),))
    for ticket in range(1, 20):
        made = filled(store, layout, ticket=ticket)
        assert (load_file(made.path)["a"] == 0).all()
        store.remove(ticket)
    assert len(os.listdir(folder)) == 1
    other = filled(store, Layout((Field("b", "float32", (7,)),)), ticket=20)
    assert load_file(other.path).keys() == {"b"}
    assert os.listdir(folder) == ["b20.safetensors"]


def test_the_bound_counts_the_tensors_of_all_batches(serve, folder, opening, plan):
    """Batches are refused when they do not fit, and made when room was given back; the files never exceed the bound."""
    nbytes = ROWS * (6 * 4 * 3 + 8)
    host = serve(FileStore(str(folder), 2 * nbytes))
    host.begin(opening, plan)
    assert isinstance(host.make(1), Made)
    assert isinstance(host.make(2, 1), Made)
    failed = host.make(3, 2)
    assert isinstance(failed, Failed)
    assert failed.kind == "full"
    host.say(Forget(1))
    assert isinstance(host.make(4, 2), Made)
    assert names(folder) == ["b2.safetensors", "b4.safetensors"]
    assert len(os.listdir(folder)) == 2


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_full_file_system_is_a_full_store(serve, folder, opening, plan, monkeypatch):
    """ENOSPC from the file system is answered as a full store, and nothing of the batch is left."""

    def full(fd: int, offset: int, nbytes: int) -> None:
        with open("/dev/full", "wb", buffering=0) as device:
            device.write(b"x")

    monkeypatch.setattr(os, "posix_fallocate", full)
    host = serve(FileStore(str(folder)))
    host.begin(opening, plan)
    failed = host.make(1)
    assert failed.kind == "full"
    monkeypatch.undo()
    assert isinstance(host.make(2), Made)
    assert names(folder) == ["b2.safetensors"]


def test_removing_what_is_not_there_does_nothing(store):
    """Forget of an unknown ticket is no error."""
    store.remove(7)


def test_a_store_of_its_own_is_private_and_goes():
    """Without a folder the store makes one that only its owner can read; close removes it with all batches."""
    store = FileStore()
    assert os.stat(store.folder).st_mode & 0o777 == 0o700
    filled(store, Layout((Field("a", "uint8", (1,)),)))
    store.close()
    store.close()
    assert not os.path.exists(store.folder)
