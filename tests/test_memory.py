"""The laws of host memory: who holds a view keeps the memory, what nobody holds is used again, and nothing grows."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import pickle
import queue
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlp.errors import ClosedError, IllegalMove
from ddlp.memory import KEEP_LEASES, Arena, load_shared, mapped, share
from ddlp.types import ITEM_NBYTES, Field, Layout, Leaf

BYTES = (Leaf("uint8", (100,), 0),)


@pytest.fixture
def arena():
    arena = Arena()
    yield arena
    arena.close()


def resident(arena: Arena) -> int:
    """Bytes of memory that the arena's file really has."""
    return os.fstat(arena.fd).st_blocks * 512


def descriptors() -> int:
    gc.collect()  # what earlier tests have left in reference cycles is not ours
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("ddlp-arena")


# --- slots -----------------------------------------------------------------------------------------------------------


def test_a_recycled_slot_is_leased_again(arena):
    """The memory of a slot that was given up serves the next lease, with its pages."""
    slot = arena.lease(1000)
    offset = slot.offset
    arena.recycle(slot)
    assert arena.lease(500).offset == offset


def test_a_dropped_slot_is_leased_again(arena):
    """A slot that nobody recycles, because of an exception, is not lost."""
    offset = arena.lease(1000).offset
    assert arena.lease(1000).offset == offset


def test_two_leases_never_share_memory(arena):
    """What is leased at the same time is disjoint."""
    slots = [arena.lease(5000) for _ in range(4)]
    ends = sorted((slot.offset, slot.offset + slot.capacity) for slot in slots)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


@pytest.mark.parametrize("keep", [lambda tensor: tensor, lambda tensor: tensor[3:5], lambda tensor: tensor.numpy()[4:]])
def test_any_view_keeps_the_memory(arena, keep):
    """A tensor, a slice of one, or an array made from one keeps the slot; its death frees it."""
    slot = arena.lease(100)
    offset = slot.offset
    (array,) = slot.hand_over(BYTES)
    array[:] = 7
    kept = keep(torch.from_numpy(array))
    del array, slot
    gc.collect()
    other = arena.lease(100)
    other.arrays(BYTES)[0][:] = 9
    assert other.offset != offset
    assert set(kept.tolist()) == {7}
    del kept
    assert arena.lease(100).offset == offset


def test_recycling_waits_for_views(arena):
    """A view that somebody still writes through, a reading thread for one, keeps a recycled slot from being used."""
    slot = arena.lease(100)
    offset, view = slot.offset, slot.memory[10:20]
    arena.recycle(slot)
    other = arena.lease(100)
    assert other.offset != offset
    view.release()
    assert arena.lease(100).offset == offset


def test_a_late_recycle_is_harmless(arena):
    """Recycling a slot that was handed over, or twice, never frees somebody else's lease of the same memory."""
    slot = arena.lease(100)
    arrays = slot.hand_over(BYTES)
    arena.recycle(slot)
    other = arena.lease(100)
    assert other.offset != slot.offset
    del arrays
    again = arena.lease(100)
    assert again.offset == slot.offset
    arena.recycle(slot)
    assert arena.lease(100).offset != again.offset


def test_views_die_in_any_thread(arena):
    """Views may die in other threads, many at a time, while the owner leases."""
    shelf: queue.Queue = queue.Queue(maxsize=20)
    wrong = []

    def consume() -> None:
        while (batch := shelf.get()) is not None:
            number, array = batch
            if (array != number % 251).any():
                wrong.append(number)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        slot = arena.lease(100)
        slot.arrays(BYTES)[0][:] = number % 251
        shelf.put((number, *slot.hand_over(BYTES)))
    for _ in threads:
        shelf.put(None)
    for thread in threads:
        thread.join()
    assert not wrong
    assert arena.used_nbytes == 0
    assert arena.nbytes <= 25 * mmap.PAGESIZE


def test_views_in_reference_cycles_come_back(arena):
    """A batch inside a reference cycle is free after the garbage collection that finds it."""
    knot: list = arena.lease(100).hand_over(BYTES)
    knot.append(knot)
    del knot
    gc.collect()
    assert arena.used_nbytes == 0


def test_a_handed_over_slot_has_no_memory(arena):
    """Using a slot after it was given up is an error, not a view of somebody else's batch."""
    slot = arena.lease(100)
    slot.hand_over(BYTES)
    with pytest.raises(IllegalMove, match="no memory any more"):
        slot.arrays(BYTES)


def test_keeping_every_batch_works_and_takes_no_descriptor(arena):
    """A loop that keeps all its batches has all of them, each whole, and not one descriptor more."""
    before = descriptors()
    kept = []
    for number in range(300):
        slot = arena.lease(100)
        slot.arrays(BYTES)[0][:] = number % 251
        kept += slot.hand_over(BYTES)
    assert descriptors() == before
    assert all((array == number % 251).all() for number, array in enumerate(kept))


def test_a_thousand_leases_take_the_memory_of_one(arena):
    """Lease and release in turn: neither the file nor its pages grow."""
    for _ in range(1000):
        arena.lease(100_000).arrays((Leaf("uint8", (100_000,), 0),))[0][:] = 1
    assert arena.nbytes < 2 * 100_000
    assert resident(arena) < 2 * 100_000


def test_surplus_memory_is_given_back(arena):
    """After a loop that kept many batches, what the following leases do not need goes back to the system."""
    kept = [arena.lease(100_000).hand_over((Leaf("uint8", (100_000,), 0),)) for _ in range(50)]
    for arrays in kept:
        arrays[0][:] = 1
    del kept, arrays
    assert resident(arena) > 40 * 100_000
    for _ in range(KEEP_LEASES + 2):
        arena.lease(100_000)
    assert resident(arena) < 4 * 100_000
    assert arena.nbytes < 4 * 100_000


def test_memory_that_became_too_small_is_given_back(arena):
    """When batches grow, the slots of the small ones go."""
    small = [arena.lease(10_000) for _ in range(20)]
    for slot in small:
        slot.memory[:] = bytes(slot.capacity)
    del small, slot
    arena.lease(1_000_000)
    assert arena.nbytes < 1_300_000
    assert resident(arena) < 10_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300_000)), max_size=60))
def test_memory_is_bounded_by_what_was_in_use(moves):
    """Whatever the order of leases and releases: content is never shared, free memory never exceeds the peak in use."""
    arena, held, peak = Arena(), [], 0
    for number, (lease, nbytes) in enumerate(moves):
        if lease or not held:
            held.append((number, arena.lease(nbytes)))
            assert held[-1][1].capacity >= nbytes
            held[-1][1].memory[:] = bytes([number]) * held[-1][1].capacity
        else:
            held.pop(nbytes % len(held))
        peak = max(peak, arena.used_nbytes)
        assert all(set(slot.memory[:: slot.capacity // 3]) == {number} for number, slot in held)
        assert arena.used_nbytes == sum(slot.capacity for _, slot in held)
        assert arena.free_nbytes <= peak
    arena.close()


def test_close_leaves_nothing_but_what_is_in_use():
    """After close there are no leases and no descriptor; views live on, and take their memory with them at the end."""
    before = descriptors(), mappings()
    arena = Arena()
    (array,) = arena.lease(100).hand_over(BYTES)
    array[:] = 5
    arena.close()
    arena.close()
    assert descriptors() == before[0]
    assert (array == 5).all()
    with pytest.raises(ClosedError):
        arena.lease(1)
    del array
    assert mappings() == before[1]


def test_a_dropped_arena_leaves_nothing():
    """An arena that nobody closes goes with the last reference to it and to its views."""
    before = descriptors(), mappings()
    arena = Arena()
    (array,) = arena.lease(100).hand_over(BYTES)
    del arena
    gc.collect()
    array[:] = 5
    del array
    assert (descriptors(), mappings()) == before


def test_nothing_appears_in_dev_shm(arena):
    """The memory has no name in any file system."""
    before = set(os.listdir("/dev/shm"))
    slot = arena.lease(1 << 20)
    assert set(os.listdir("/dev/shm")) == before
    assert slot.capacity >= 1 << 20


@given(st.lists(st.sampled_from(sorted(ITEM_NBYTES)), min_size=1, max_size=5), st.integers(1, 5))
def test_every_dtype_has_a_view(dtypes, rows):
    """Each leaf of a layout, whatever its dtype, is an aligned array of its own bytes; bfloat16 comes as int16."""
    arena = Arena()
    layout = Layout(tuple(Field(f"f{k}", dtype, (3,)) for k, dtype in enumerate(dtypes)))
    leaves = layout.leaves(rows)
    arrays = arena.lease(layout.nbytes(rows)).hand_over(leaves)
    for dtype, array in zip(dtypes, arrays, strict=True):
        assert array.dtype.name == ("int16" if dtype == "bfloat16" else dtype)
        assert array.shape == (rows, 3)
        assert array.flags.aligned
        assert array.flags.writeable
    arena.close()


def test_mapping_fails_with_the_reason():
    """A range that cannot be mapped is an OSError that says how large it was."""
    with pytest.raises(OSError, match="cannot map 4096 bytes"):
        mapped(-1, 0, 4096)


def test_repr_shows_the_state(arena):
    """One line that says what is in use."""
    slot = arena.lease(4096)
    assert repr(slot) == "<Slot 4096 bytes at 0>"
    assert repr(arena) == "<Arena 4096 bytes used, 0 free>"
    arena.recycle(slot)
    assert repr(slot) == "<Slot 4096 bytes at 0 given up>"
    assert repr(arena) == "<Arena 0 bytes used, 4096 free>"


# --- shared objects --------------------------------------------------------------------------------------------------


def loaded(obj: object) -> object:
    shared = share(obj)
    return load_shared(shared.fd, shared.nbytes)


def test_arrays_are_shared_and_not_copied():
    """An object comes back equal; its arrays are views of the file's pages, at cache lines."""
    array = np.arange(100_000).reshape(100, 1000)
    back = loaded({"a": array, "b": [array[:3], "text"], "c": array.T})
    assert (back["a"] == array).all()
    assert (back["b"][0] == array[:3]).all()
    assert (back["c"] == array.T).all()
    assert back["a"].ctypes.data % 64 == 0
    assert not back["a"].flags.owndata


def test_writing_to_a_shared_array_stays_private():
    """A reader may write to its arrays, and nobody else sees it."""
    shared = share(np.zeros(5000))
    mine, theirs = load_shared(shared.fd, shared.nbytes), load_shared(shared.fd, shared.nbytes)
    shared.close()
    mine[:] = 1
    assert (theirs == 0).all()


@given(st.recursive(st.integers() | st.text() | st.binary(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_any_object_comes_back(obj):
    """What pickles arrives equal, the smallest included."""
    assert loaded(obj) == obj


def test_empty_arrays_come_back():
    """Arrays without a byte are no special case."""
    back = loaded([np.zeros((0, 3)), np.zeros(2)])
    assert back[0].shape == (0, 3)


def test_what_cannot_be_pickled_leaves_no_descriptor():
    """A failure to pickle is the pickler's own error, and no file is left."""
    before = descriptors()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        share(lambda: None)
    assert descriptors() == before


def test_main_is_noticed_only_where_it_is_meant():
    """`names_main` is true for what lives in the main module, not for the bare text."""
    in_main = type("InMain", (), {"__module__": "__main__"})
    texts = share(["__main__ is the name", b"__main__"])
    import __main__

    __main__.InMain = in_main
    try:
        classes = share(in_main)
    finally:
        del __main__.InMain
    assert classes.names_main
    assert not texts.names_main
