"""The file of decoded pixels: whatever happens to it, a sample's pixels are right or not there."""

from __future__ import annotations

import errno
import fcntl
import functools
import mmap
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlp.data import pixel_file
from ddlp.data.ops import Decode
from ddlp.data.pixel_file import PixelFile, Stamp
from ddlp.data.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES = 40
ROOMY = 1 << 24
RGB = Recipe((Decode(),))
STAMP = Stamp(1_700_000_000_000_000_000, 4321)


def opened(path: Path, nbytes: int = ROOMY) -> PixelFile:
    return PixelFile(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), nbytes, SAMPLES, RGB)


@functools.cache
def image(id_: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """An image of its own size and content for each sample."""
    rng = np.random.default_rng((seed, id_))
    return rng.integers(0, 256, (5 + id_ % 7, 3 + id_ % 5, 3), dtype=np.uint8)


def fill(file: PixelFile, ids: Any = range(SAMPLES)) -> None:
    for id_ in ids:
        file.add(id_, STAMP, image(id_))


def right(file: PixelFile, ids: Any = range(SAMPLES)) -> set[int]:
    """Which samples are there; all of these are right."""
    found = {id_: file.get(id_, STAMP) for id_ in ids}
    for id_, pixels in found.items():
        assert pixels is None or np.array_equal(pixels, image(id_))
    return {id_ for id_, pixels in found.items() if pixels is not None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.pixels"


@pytest.fixture
def file(path: Path) -> Iterator[PixelFile]:
    file = opened(path)
    yield file
    file.close()


def test_what_was_added_is_a_view_of_the_file(file: PixelFile) -> None:
    """Pixels come back without a copy, so only the rows that are looked at are read; nobody can write to them."""
    assert right(file) == set()
    assert not file.has(3)
    fill(file)
    assert right(file) == set(range(SAMPLES))
    assert file.has(3)
    pixels = file.get(3, STAMP)
    assert pixels is not None
    assert isinstance(pixels.base, mmap.mmap)
    assert pixels.flags.c_contiguous
    assert not pixels.flags.writeable


def test_every_opening_sees_what_others_add(file: PixelFile, path: Path) -> None:
    """Two runs, or two ranks, of one folder, and a worker that inherits the descriptor, share what is there."""
    other, worker = opened(path), pickle.loads(pickle.dumps(file))
    fill(file, range(10))
    fill(other, range(5, 20))
    fill(worker, range(15, 30))
    assert right(file) == right(other) == right(worker) == set(range(30))
    assert file.used_nbytes == os.path.getsize(path) == SAMPLES * 48 + sum(image(id_).nbytes for id_ in range(30))


def test_a_worker_waits_for_the_lock_of_another(file: PixelFile) -> None:
    """What a process inherits is opened anew there, for processes that share an opening share its lock."""
    worker = pickle.loads(pickle.dumps(file))
    with file._locked(), pytest.raises(BlockingIOError):
        fcntl.flock(worker.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(worker.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_memory_without_a_name_is_shared_too() -> None:
    """A memory file works the same way, and goes when it is closed."""
    file = PixelFile(os.memfd_create("test"), ROOMY, SAMPLES, RGB)
    worker = pickle.loads(pickle.dumps(file))
    fill(worker)
    assert right(file) == set(range(SAMPLES))
    file.close()
    file.close()
    assert "closed" in repr(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fd)


def test_a_changed_file_is_another_image(file: PixelFile) -> None:
    """Neither another time nor another size finds the old pixels; what is added then takes their place."""
    fill(file)
    for changed in (STAMP._replace(mtime_ns=STAMP.mtime_ns + 1), STAMP._replace(nbytes=STAMP.nbytes - 1)):
        assert file.get(7, changed) is None
        file.add(7, changed, image(7, seed=1))
        found = file.get(7, changed)
        assert found is not None
        assert np.array_equal(found, image(7, seed=1))
        assert right(file) == set(range(SAMPLES)) - {7}


def test_pixels_in_use_stay_as_they_are(file: PixelFile) -> None:
    """Whoever still crops from an image when its source is replaced crops from the old one."""
    fill(file)
    before = file.get(7, STAMP)
    file.add(7, STAMP._replace(nbytes=1), image(7, seed=1))
    fill(file)
    assert before is not None
    assert np.array_equal(before, image(7))


def test_the_first_to_add_a_sample_has_added_it(file: PixelFile, path: Path) -> None:
    """A second rank that has decoded the same image takes no room."""
    fill(file)
    before = path.read_bytes()
    fill(opened(path))
    assert path.read_bytes() == before


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, SAMPLES * 48, SAMPLES * 48 + image(0).nbytes, 4000])
def test_a_full_file_takes_no_more(path: Path, nbytes: int) -> None:
    """The bound holds to the byte, the records included; what has found room stays."""
    file = opened(path, nbytes)
    fill(file)
    kept = right(file)
    assert file.full
    assert len(kept) == {1: 0, 1920: 0, 1920 + image(0).nbytes: 1}.get(nbytes, len(kept)) < SAMPLES
    assert file.used_nbytes <= max(nbytes, SAMPLES * 48)
    fill(opened(path, nbytes))
    assert right(opened(path)) == kept


def test_a_disk_without_room_is_a_full_file(file: PixelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing that fails is no error: what is there stays, nothing half written is found, and no more is tried."""
    fill(file, range(10))
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    fill(file, range(10, 20))
    assert file.full
    monkeypatch.undo()
    fill(file, range(20, 30))
    assert right(file) == set(range(10))


def failing(code: int) -> Any:
    def write(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return write


def test_a_limit_of_the_system_is_a_full_file(file: PixelFile) -> None:
    """The same with an error of the kernel's own: the largest size that a file may have."""
    fill(file, range(10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.used_nbytes + image(10).nbytes + 5, hard))
    try:
        fill(file, range(10, 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.full
    assert right(file) == set(range(11))


def test_a_write_that_stops_early_goes_on(file: PixelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was asked to."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, data[:7], offset))
    fill(file)
    assert right(file) == set(range(SAMPLES))


# --- damage ----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_damaged_record_is_none(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Arbitrary bytes anywhere among the records: a sample has its own pixels or none, and can be added again."""
    path = tmp_path_factory.mktemp("damaged") / "x.pixels"
    fill(opened(path))
    junk = data.draw(st.binary(min_size=1, max_size=100))
    offset = data.draw(st.integers(0, SAMPLES * 48 - len(junk)))
    with path.open("r+b") as records:
        records.seek(offset)
        records.write(junk)
    file = opened(path)
    assert right(file) >= set(range(SAMPLES)) - set(range(offset // 48, (offset + len(junk)) // 48 + 1))
    fill(file)
    assert right(file) == set(range(SAMPLES))


def test_a_record_is_that_of_its_sample(path: Path) -> None:
    """A record that has come to another sample's place is none."""
    fill(opened(path))
    data = path.read_bytes()
    path.write_bytes(data[48:96] + data[48:])
    assert right(opened(path)) == set(range(1, SAMPLES))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_copy_that_was_cut_off_is_none_where_it_ends(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """What a copy lacks is not there, also when other images have taken its room since."""
    folder = tmp_path_factory.mktemp("copied")
    fill(opened(folder / "x.pixels"))
    nbytes = (folder / "x.pixels").stat().st_size
    shutil.copyfile(folder / "x.pixels", folder / "y.pixels")
    os.truncate(folder / "y.pixels", data.draw(st.integers(0, nbytes)))
    copy = opened(folder / "y.pixels")
    right(copy)
    order = data.draw(st.permutations(range(SAMPLES)))
    for id_ in order:
        copy.add(id_, STAMP, image(id_))
        right(copy)
    assert right(copy) == set(range(SAMPLES))


def test_after_a_reboot_pixels_are_looked_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine lost, with the record written and the pixels not, is seen; what is whole is trusted again."""
    fill(opened(path))
    at = path.read_bytes().index(image(5).tobytes())
    with path.open("r+b") as lost:
        lost.seek(at + 1)
        lost.write(bytes(20))
    monkeypatch.setattr(pixel_file, "_home", lambda fd: 77)
    file = opened(path)
    assert right(file) == set(range(SAMPLES)) - {5}
    monkeypatch.setattr(pixel_file.zlib, "crc32", counting(pixel_file.zlib.crc32))
    right(file, set(range(SAMPLES)) - {5})
    assert counting.largest == 44, "only records are checked"
    fill(file)
    assert right(file) == set(range(SAMPLES))


def counting(crc32: Any) -> Any:
    counting.largest = 0  # type: ignore[attr-defined]

    def counted(data: Any, *start: int) -> int:
        counting.largest = max(counting.largest, memoryview(data).nbytes)  # type: ignore[attr-defined]
        return int(crc32(data, *start))

    return counted


# --- several processes -----------------------------------------------------------------------------------------------

WRITER = """
import os, sys
from pathlib import Path
from tests.data.test_pixel_file import SAMPLES, STAMP, image, opened
whole = os.pwrite
os.pwrite = lambda fd, data, offset: whole(fd, data[:20], offset)  # in pieces: records and pixels are half written long
file = opened(Path(sys.argv[1]), 1 << 30)
images = [image(id_) for id_ in range(SAMPLES)]
print(flush=True)
sys.stdin.readline()
for turn in range(int(sys.argv[2])):
    for id_ in range(SAMPLES):
        file.add(id_, STAMP._replace(nbytes=STAMP.nbytes + turn), images[id_])
"""


def writers(path: Path, count: int, turns: int) -> list[subprocess.Popen[bytes]]:
    """Processes that from now on add every sample in each of their turns."""
    command = [sys.executable, "-c", WRITER, path, str(turns)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    return children


@pytest.mark.real
def test_whoever_is_killed_leaves_nothing_half_done(path: Path) -> None:
    """Two processes add without a pause and are killed: what is found is right, and nobody waits for their locks."""
    for delay_s in (0.002, 0.01, 0.03):
        children = writers(path, 2, turns=1_000_000)
        time.sleep(delay_s)
        for child in children:
            with child:
                child.kill()
            assert child.returncode == -signal.SIGKILL
        file = opened(path)
        right(file)
        fill(file)
        assert right(file) == set(range(SAMPLES))


@pytest.mark.real
def test_ranks_that_add_at_the_same_time_agree(path: Path) -> None:
    """Three processes add the same samples, over and over: each is there in the end, and right."""
    children = writers(path, 3, turns=30)
    while any(child.poll() is None for child in children):
        file = opened(path)
        for turn in range(30):
            for id_ in range(SAMPLES):
                pixels = file.get(id_, STAMP._replace(nbytes=STAMP.nbytes + turn))
                assert pixels is None or np.array_equal(pixels, image(id_))
    for child in children:
        with child:
            assert child.wait() == 0
    file = opened(path)
    last = STAMP._replace(nbytes=STAMP.nbytes + 29)
    assert all(np.array_equal(file.get(id_, last), image(id_)) for id_ in range(SAMPLES))  # type: ignore[arg-type]
