"""The laws of the emulated device: the bytes of the CPU pool, a speed of its own, a bounded store, and every fault."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from ddlp.agent.faults import Faults
from ddlp.agent.protocol import Welcome
from ddlp.data import recipes
from ddlp.data.arrays import ArrayDataset
from ddlp.data.folder import ImageFolder
from ddlp.data.maker import Maker, Preparation
from ddlp.devices.cpu import CpuPool
from ddlp.devices.emulated import EmulatedCsd
from ddlp.errors import BatchFailed, ClosedError, DataError, DeviceLost, SampleError, StoreFull, UsageError
from tests.devices import samples
from tests.devices.conftest import opened, until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]


def stored(folder: Path) -> list[str]:
    """Names of batches in the device's store, finished or not; without the files that wait for the next batches."""
    names = (path.name for path in folder.glob("ddlp-*/*") if path.is_file())
    return sorted(name for name in names if not name.startswith(".spare"))


# --- the right bytes -------------------------------------------------------------------------------------------------


def test_it_makes_the_bytes_of_the_cpu_pool(run, work_of, small_images):
    """With random augmentation, epoch after epoch, a batch has the same bytes wherever it was made."""

    async def main() -> None:
        work = work_of(ImageFolder(small_images), recipes.imagenet_train(32))
        async with opened(CpuPool(2), work) as pool, opened(EmulatedCsd(1), work) as csd:
            for work.epoch in range(2):
                await pool.open(work.job())
                await csd.open(work.job())
                assert await work.epoch_of(pool) == await work.epoch_of(csd)

    run(main())


def test_arrays_in_memory_are_loaded_onto_it(run, work, arrays, tmp_path):
    """A data set in the host's memory is written into the device's store first, and goes with it."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path), work) as csd:
            for index, (pixels, numbers) in enumerate(await work.epoch_of(csd)):
                ids = work.plan.ids(index)
                assert pixels == arrays.arrays[0][ids].tolist()
                assert numbers == ids.tolist()

    run(main())
    assert not os.listdir(tmp_path)


def test_nothing_but_its_store_is_written(run, work, tmp_path):
    """Its files lie in a private folder of its own inside `store`, readable by nobody else."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path), work) as csd:
            ref = await csd.preprocess(work.claim(0))
            (folder,) = os.listdir(tmp_path)
            assert os.stat(tmp_path / folder).st_mode & 0o777 == 0o700
            assert os.path.dirname(ref.place.path) == str(tmp_path / folder)
            assert os.stat(ref.place.path).st_mode & 0o077 == 0

    run(main())


# --- the store -------------------------------------------------------------------------------------------------------


def test_discarding_empties_the_store(run, work, tmp_path):
    """A finished batch is one file, a discarded one is none."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path), work) as csd:
            refs = [await csd.preprocess(work.claim(index)) for index in range(3)]
            assert stored(tmp_path) == ["b1.safetensors", "b2.safetensors", "b3.safetensors"]
            for ref in refs:
                csd.discard(ref)
                csd.discard(ref)
            await until(lambda: not stored(tmp_path))

    run(main())


@pytest.mark.parametrize("slowdown", [1, 1000])
def test_cancelling_leaves_nothing_in_the_store(run, work, tmp_path, slowdown):
    """Batches given up at any moment are not in the store, and the device goes on."""

    async def main() -> None:
        async with opened(EmulatedCsd(slowdown, store=tmp_path), work) as csd:
            rng = np.random.default_rng(1)
            for _ in range(15):
                tasks = [asyncio.ensure_future(csd.preprocess(work.claim(index))) for index in range(3)]
                await asyncio.sleep(rng.choice([0, rng.uniform(0, 0.02)]))
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if not isinstance(result, BaseException):
                        csd.discard(result)
            assert (await work.batch(csd, 4))[1] == work.plan.ids(4).tolist()
            await until(lambda: not stored(tmp_path))

    run(main())


@pytest.mark.parametrize("turns", range(4))
def test_a_batch_cancelled_as_it_comes_is_removed(run, work, tmp_path, turns):
    """A claim that is given up when its answer is here, but before anybody has seen it, leaves nothing either."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path), work) as csd:
            connection = csd._agents[0].connection
            task = asyncio.ensure_future(csd.preprocess(work.claim(0)))
            await until(lambda: connection.busy, 0)
            await until(lambda: not connection.busy, 0)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for result in await asyncio.gather(task, return_exceptions=True):
                if not isinstance(result, BaseException):
                    csd.discard(result)
            await until(lambda: not stored(tmp_path))

    run(main())


def test_a_full_store_says_so_and_takes_more_later(run, work, tmp_path):
    """What does not fit into `store_bytes` fails with StoreFull; after a discard there is room."""
    nbytes = work.preparation.layout.nbytes(10)

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path, store_bytes=2 * nbytes), work) as csd:
            first = await csd.preprocess(work.claim(0))
            await csd.preprocess(work.claim(1))
            with pytest.raises(StoreFull, match=f"{2 * nbytes} of {2 * nbytes} bytes are taken"):
                await csd.preprocess(work.claim(2))
            csd.discard(first)
            await csd.preprocess(work.claim(2))

    run(main())


# --- the speed -------------------------------------------------------------------------------------------------------


def test_it_is_as_slow_as_it_says(run, work_of):
    """A device four times slower takes four times its own CPU time for each batch, on the whole."""
    rng = np.random.default_rng(0)
    data = ArrayDataset(rng.integers(0, 256, (75, 96, 96, 3), dtype=np.uint8), np.arange(75))

    async def main() -> None:
        work = work_of(data, recipes.imagenet_train(64))
        async with opened(EmulatedCsd(4.0), work) as csd:
            started = time.monotonic()
            refs = await asyncio.gather(*(csd.preprocess(work.claim(index)) for index in range(8)))
            elapsed = time.monotonic() - started
            expected = 4.0 * sum(ref.cpu_s for ref in refs)
            assert 0.3 * expected < elapsed < expected + 1.0  # what writing the files takes is not slowed down
            assert sum(ref.made_s for ref in refs) == pytest.approx(elapsed, rel=0.3)

    run(main())


def test_it_takes_no_processor_time_to_be_slow(run, work):
    """Waiting for its time to come costs nothing."""

    async def main() -> None:
        async with opened(EmulatedCsd(10_000), work) as csd:
            ref = await csd.preprocess(work.claim(0))
            assert ref.made_s > 0.1
            assert cpu_s(csd._agents[0].pid) < 0.3  # the start of the interpreter among them

    run(main())


def cpu_s(pid: int) -> float:
    """Processor seconds that the process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_python_of_this_program_is_refused(run, work_of):
    """A data set or collate function that only this program has cannot run there; the message says what can."""

    async def main() -> None:
        for work in (work_of(samples.Rows()), work_of(ArrayDataset(np.zeros((20, 2))), collate_fn=list)):
            csd = EmulatedCsd()
            with pytest.raises(UsageError, match="csd0 runs no Python of this program: use ImageFolder"):
                await csd.open(work.job())
            await csd.aclose()

    run(main())


def test_another_copy_of_the_data_is_refused(run, work_of, small_images, monkeypatch):
    """When the device sees other files than the host, `open` says which figure differs, and both values."""

    async def main() -> None:
        work = work_of(ImageFolder(small_images), recipes.imagenet_eval(32))
        monkeypatch.setattr(work.preparation, "fingerprint", "0123456789abcdef")
        csd = EmulatedCsd()
        with pytest.raises(DataError, match=r"fingerprint .* is [0-9a-f]{16} there and 0123456789abcdef here"):
            await csd.open(work.job())
        await csd.aclose()

    run(main())


def test_other_libraries_are_refused(work):
    """A device whose decoder has another version makes other pixels, and is not used."""
    theirs = dict.fromkeys(Maker.kernels(), "0.1")
    ours = work.preparation

    class Found:
        samples, layout, fingerprint = ours.samples, ours.layout, ours.fingerprint

    with pytest.raises(DataError, match=r"libraries that make the pixels is .*0\.1"):
        EmulatedCsd()._check(work.job(), Welcome(1, 2, theirs), Found())


def test_files_that_are_gone_on_the_device_are_explained(run, work_of, small_images, tmp_path):
    """A device that cannot open the data set says so at `open`."""
    folder = shutil.copytree(small_images, tmp_path / "images")
    work = work_of(ImageFolder(folder), recipes.imagenet_eval(32))
    shutil.rmtree(folder)

    async def main() -> None:
        csd = EmulatedCsd()
        with pytest.raises(DataError, match=r"csd0 \(process \d+\): DataError: .*images"):
            await csd.open(work.job())
        await csd.aclose()

    run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"slowdown": 0.5}, "slowdown"), ({"store_bytes": 0}, "store_bytes"), ({"store": "/nowhere"}, "not a folder")],
)
def test_impossible_options_are_refused(options, message):
    """What makes no sense is named when the device is made."""
    with pytest.raises(UsageError, match=message):
        EmulatedCsd(**options)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_bad_sample_comes_out_with_path_and_id(run, work_of, small_images, tmp_path):
    """A damaged file ends its batch with SampleError naming it; nothing is left, and other batches go on."""
    folder = tmp_path / "data" / "class0"
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted(small_images.rglob("*.jpg"))[:20]):
        (folder / f"{number:02}.jpg").write_bytes(file.read_bytes())
    (folder / "bad.jpg").write_bytes(b"not an image")

    async def main() -> None:
        work = work_of(ImageFolder(folder.parent), recipes.imagenet_eval(32))
        async with opened(EmulatedCsd(1, store=tmp_path), work) as csd:
            with pytest.raises(SampleError, match=r"sample 20 .*bad\.jpg"):
                await csd.preprocess(work.claim_of(20))
            assert not stored(tmp_path)
            index = next(i for i in range(len(work.plan)) if 20 not in work.plan.ids(i))
            await work.batch(csd, index)

    run(main())


def test_a_crash_loses_the_device_until_it_is_opened_again(run, work, tmp_path):
    """A dead agent is DeviceLost with its signal, for what was in flight and after; `open` starts a new one."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path, faults=Faults(crash_at=(2,))), work) as csd:
            calls = [csd.preprocess(work.claim(index)) for index in range(5)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(result) for result in results[2:]] == [DeviceLost] * 3
            assert all("was killed by SIGKILL" in str(result) for result in results[2:])
            with pytest.raises(DeviceLost):
                await csd.preprocess(work.claim(0))
            await csd.open(work.job())
            assert (await work.batch(csd, 4))[1] == work.plan.ids(4).tolist()
            assert csd.statistics().restarts == 1

    run(main())
    assert not os.listdir(tmp_path)


def test_a_stalled_device_can_be_closed(run, work, tmp_path):
    """A device that answers no more ends with its claims when it is closed."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path, faults=Faults(stall_at=(1,))), work) as csd:
            await csd.preprocess(work.claim(0))
            task = asyncio.ensure_future(csd.preprocess(work.claim(1)))
            await asyncio.sleep(0.1)
            assert not task.done()
            started = time.monotonic()
            await csd.aclose()
            assert time.monotonic() - started < 1.0
            with pytest.raises(ClosedError):
                await task

    run(main())


def test_a_stall_that_ends_is_only_late(run, work):
    """After a stall of some time the device answers as before; what was given up meanwhile is not made."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, faults=Faults(stall_at=(0,), stall_s=0.3)), work) as csd:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(csd.preprocess(work.claim(0)), 0.1)
            assert (await work.batch(csd, 1))[1] == work.plan.ids(1).tolist()
            assert csd.statistics().made == 1

    run(main())


def test_a_slow_batch_is_slow(run, work):
    """From the given batch on the device is so many times slower."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, faults=Faults(slow_at={1: 5000.0, 2: 1.0})), work) as csd:
            refs = [await csd.preprocess(work.claim(index)) for index in range(3)]
            assert refs[1].made_s > 10 * refs[2].made_s

    run(main())


def test_a_damaged_file_is_found_when_it_is_carried(run, work):
    """Bytes that changed after they were made never reach the loop: the batch fails, naming file and batch."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, faults=Faults(corrupt_at=(0,))), work) as csd:
            ref = await csd.preprocess(work.claim(3))
            with pytest.raises(
                BatchFailed, match=r"batch 3 .* of csd0: .*b1\.safetensors' is damaged: bytes from 0 on have"
            ):
                await work.arrays(ref)
            csd.discard(ref)
            assert (await work.batch(csd, 3))[1] == work.plan.ids(3).tolist()

    run(main())


def test_a_lost_answer_fails_its_batch_at_the_next(run, work, tmp_path):
    """The answer to a later batch shows that an earlier one was lost: that one fails at once, and leaves no file."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path, faults=Faults(lose_answer_at=(0,))), work) as csd:
            calls = [csd.preprocess(work.claim(index)) for index in range(2)]
            lost, ref = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(lost, BatchFailed)
            assert "the answer was lost" in str(lost)
            await until(lambda: stored(tmp_path) == [os.path.basename(ref.place.path)])

    run(main())


def test_a_second_answer_is_counted_and_ignored(run, work, tmp_path):
    """An answer that comes twice changes nothing; it is counted as late."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path, faults=Faults(duplicate_answer_at=(0,))), work) as csd:
            first = await csd.preprocess(work.claim(0))
            await csd.preprocess(work.claim(1))
            assert csd.statistics().late == 1
            assert csd.statistics().made == 2
            csd.discard(first)
            await until(lambda: len(stored(tmp_path)) == 1)

    run(main())


def test_a_full_device_is_full(run, work, tmp_path):
    """A store without room fails the batch with StoreFull, and leaves nothing of it."""

    async def main() -> None:
        async with opened(EmulatedCsd(1, store=tmp_path, faults=Faults(full_at=(0,))), work) as csd:
            with pytest.raises(StoreFull, match="no room, by the script"):
                await csd.preprocess(work.claim(0))
            assert not stored(tmp_path)
            assert csd.statistics().failed == 1

    run(main())


def test_statistics_add_up(run, work):
    """Made, bytes and times are those of the batches."""

    async def main() -> None:
        async with opened(EmulatedCsd(1), work) as csd:
            refs = [await csd.preprocess(work.claim(index)) for index in range(3)]
            statistics = csd.statistics()
            assert statistics.made == 3
            assert statistics.nbytes == sum(ref.nbytes for ref in refs)
            assert statistics.cpu_s == pytest.approx(sum(ref.cpu_s for ref in refs))
            assert statistics.made_s >= statistics.cpu_s > 0

    run(main())


def test_repr_is_one_line(work: Preparation):
    """It shows name, side and whether it is closed."""
    csd = EmulatedCsd(name="csd7")
    assert repr(csd) == "<EmulatedCsd csd7 tail>"
    asyncio.run(csd.aclose())
    assert repr(csd) == "<EmulatedCsd csd7 tail closed>"
