"""The laws of the CPU pool: the right bytes whatever the number of workers, and errors that say who and what."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from ddlp.data import recipes
from ddlp.data.folder import ImageFolder
from ddlp.devices.cpu import CpuPool
from ddlp.errors import BatchFailed, ClosedError, DataError, DeviceLost, SampleError, UsageError
from tests.conftest import processes
from tests.devices import samples
from tests.devices.conftest import opened, until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]


def children() -> list[int]:
    return sorted(processes())


# --- the right bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_make_the_rows_of_the_plan(run, work, arrays, workers):
    """However a batch is divided, it holds the samples that the plan says, in their order; epoch after epoch."""

    async def main() -> None:
        async with aclosing(CpuPool(workers)) as pool:
            for work.epoch in range(3):
                await pool.open(work.job())
                for index, (pixels, numbers) in enumerate(await work.epoch_of(pool)):
                    ids = work.plan.ids(index)
                    assert pixels == arrays.arrays[0][ids].tolist()
                    assert numbers == ids.tolist()
            assert len(children()) == workers

    run(main())


def test_a_recipe_gives_the_same_bytes_with_any_number_of_workers(run, work_of, small_images):
    """Random augmentation depends on the sample, not on which worker makes which rows."""

    async def epoch(workers: int) -> list:
        work = work_of(ImageFolder(small_images), recipes.imagenet_train(32))
        async with opened(CpuPool(workers), work) as pool:
            return await work.epoch_of(pool)

    async def main() -> None:
        assert await epoch(1) == await epoch(3)

    run(main())


def test_python_data_sets_work_whole(run, work_of):
    """A data set in Python, whose batches have no fixed form, arrives with its structure."""

    async def main() -> None:
        work = work_of(samples.Rows())
        async with opened(CpuPool(2), work) as pool:
            for index, (values, numbers) in enumerate(await work.epoch_of(pool)):
                assert numbers == work.plan.ids(index).tolist()
                assert values == [[number] * 5 for number in numbers]

    run(main())


def test_a_batch_larger_than_its_slot_gets_a_larger_one(run, work_of):
    """Batches without a fixed form may be of any size; the first of them, too, arrives whole."""

    async def main() -> None:
        work = work_of(samples.Ragged(), collate_fn=list)
        async with opened(CpuPool(2), work) as pool:
            refs = await asyncio.gather(*(pool.preprocess(work.claim(index)) for index in range(len(work.plan))))
            assert max(ref.nbytes for ref in refs) > 1 << 20
            for ref in refs:
                arrays = await work.arrays(ref)
                assert [set(array.tolist()) for array in arrays] == [
                    {i} for i in work.plan.ids(ref.claim.index).tolist()
                ]
                pool.discard(ref)

    run(main())


def test_large_arrays_are_not_copied_for_each_worker(work_of):
    """The arrays of a data set lie in memory once for all workers: they map one file."""

    async def main() -> int:
        work = work_of(samples.Rows(), collate_fn=samples.Counting(np.ones(60_000_000, np.uint8)))
        async with opened(CpuPool(3), work):
            assert len(children()) == 3
            return sum(private_nbytes(pid) for pid in children())

    assert asyncio.run(main()) < 2 * 60_000_000


def private_nbytes(pid: int) -> int:
    """Bytes that belong to this process alone, some 15 MB of interpreter among them."""
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return 1024 * int(fields[fields.index("Private_Dirty:") + 1])


def test_the_user_may_write_to_the_data_set(run, work_of):
    """A data set may change its own arrays in a worker, as it may without workers."""

    async def main() -> None:
        work = work_of(samples.Rows(), collate_fn=samples.Counting(np.zeros(4)))
        async with opened(CpuPool(1), work) as pool:
            refs = [await pool.preprocess(work.claim(index)) for index in range(3)]
            assert [float((await work.arrays(ref))[0][0]) for ref in refs] == [1.0, 2.0, 3.0]

    run(main())


def test_collected_batches_keep_their_memory(run, work):
    """A loop that keeps every batch has them all."""

    async def main() -> None:
        async with opened(CpuPool(2), work) as pool:
            kept = []
            for index in range(len(work.plan)):
                ref = await pool.preprocess(work.claim(index))
                kept.append(ref.place.hand_over(ref.leaves))
                pool.discard(ref)
            for index, (_, numbers) in enumerate(kept):
                assert numbers.tolist() == work.plan.ids(index).tolist()

    run(main())


# --- cancellation ----------------------------------------------------------------------------------------------------


def test_cancelled_batches_leave_the_others_alone(run, work_of):
    """Batches given up at any moment free their memory, and never write into somebody else's."""

    async def main() -> None:
        work = work_of(samples.Slow())
        async with opened(CpuPool(2), work) as pool:
            rng = np.random.default_rng(0)
            for _ in range(4):
                tasks = [asyncio.ensure_future(work.batch(pool, index)) for index in range(4)]
                await asyncio.sleep(rng.uniform(0, 0.1))
                tasks[0].cancel()
                tasks[2].cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                for index in (1, 3):
                    assert results[index][1] == work.plan.ids(index).tolist()
            await work.epoch_of(pool)
            del tasks, results
            assert work.arena.used_nbytes == 0
            assert pool.statistics().failed == 0

    run(main())


def test_what_was_given_up_never_writes_into_another_batch(run, work_of):
    """A worker inside a sample of a batch that was given up still writes it; to no memory that is in use again."""

    async def main() -> None:
        plan = work_of(samples.Images(-1), recipes.cifar_eval()).plan
        work = work_of(samples.Images(slow=int(plan.ids(0)[0])), recipes.cifar_eval())
        async with opened(CpuPool(2), work) as pool:
            connections = [agent.connection for agent in pool._agents]
            unwanted = asyncio.ensure_future(pool.preprocess(work.claim(0)))
            await until(lambda: all(connection.busy for connection in connections), 0)
            await until(lambda: not all(connection.busy for connection in connections), 0)
            unwanted.cancel()
            await asyncio.wait([unwanted])
            images, numbers = await work.batch(pool, 1)
            assert numbers == work.plan.ids(1).tolist()
            assert images == (await work.batch(pool, 1))[0]

    run(main())


def test_a_given_up_batch_stops_between_samples(run, work_of):
    """A worker does not finish a batch that nobody wants: the next one comes after a sample's time."""

    async def main() -> float:
        work = work_of(samples.Slower())
        async with opened(CpuPool(1), work) as pool:
            await work.batch(pool, 0)
            tasks = [asyncio.ensure_future(work.batch(pool, index)) for index in (1, 2)]
            await asyncio.sleep(0.02)
            started = time.monotonic()
            for task in tasks:
                task.cancel()
            await work.batch(pool, 3)
            return time.monotonic() - started

    assert run(main()) < 2 * 10 * samples.Slower.seconds


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "cause"),
    [("raise_key_error", KeyError), ("raise_unpicklable", None), ("raise_unbuildable", None), ("exit", SystemExit)],
)
def test_an_exception_of_a_sample_comes_out_with_its_origin(run, work_of, how, cause):
    """What a sample raises arrives as SampleError, with the worker's traceback and, where it travels, the original."""

    async def main() -> None:
        work = work_of(samples.Unlucky(how))
        async with opened(CpuPool(2), work) as pool:
            with pytest.raises(SampleError) as caught:
                await pool.preprocess(work.claim_of(7))
            assert "samples.py" in "".join(caught.value.__notes__)
            assert "cpu0 (process " in "".join(caught.value.__notes__)
            if cause is not SystemExit:
                assert caught.value.sample_id == 7
            if cause is not None:
                assert isinstance(caught.value.__cause__, cause)
            index = next(i for i in range(len(work.plan)) if 7 not in work.plan.ids(i))
            assert (await work.batch(pool, index))[1] == work.plan.ids(index).tolist()
            assert pool.statistics().failed == 1

    run(main())


def test_a_bad_image_comes_out_with_path_and_id(run, work_of, small_images, tmp_path):
    """A damaged file ends its batch with SampleError naming it; other batches go on."""
    path = tmp_path / "class0" / "bad.jpg"
    path.parent.mkdir()
    for number, file in enumerate(sorted(small_images.rglob("*.jpg"))[:20]):
        path.with_name(f"{number:02}.jpg").write_bytes(file.read_bytes())
    path.write_bytes(b"not an image")

    async def main() -> None:
        work = work_of(ImageFolder(tmp_path), recipes.imagenet_eval(32))
        async with opened(CpuPool(2), work) as pool:
            with pytest.raises(SampleError, match=r"bad\.jpg"):
                await pool.preprocess(work.claim_of(20))
            index = next(i for i in range(len(work.plan)) if 20 not in work.plan.ids(i))
            await work.batch(pool, index)

    run(main())


def test_a_killed_worker_fails_its_batch_and_the_others_go_on(run, work_of):
    """The batch of a dead worker fails, naming process, signal and rows; the pool works on, and is whole at `open`."""

    async def main() -> None:
        work = work_of(samples.Unlucky("be_killed"))
        async with opened(CpuPool(2), work) as pool:
            with pytest.raises(
                BatchFailed, match=r"cpu0 \(process \d+\) was killed by SIGKILL; it had rows 0\.\.10 of batch"
            ):
                await pool.preprocess(work.claim_of(7))
            indices = [i for i in range(len(work.plan)) if 7 not in work.plan.ids(i)]
            assert len(await asyncio.gather(*(work.batch(pool, i) for i in indices))) == 3
            assert len(children()) == 1
            await pool.open(work.job())
            assert len(children()) == 2
            assert pool.statistics().restarts == 1

    run(main())


def test_a_pool_without_workers_is_lost(run, work_of):
    """When the last worker dies, its batch and those in line fail with DeviceLost; the next `open` starts anew."""

    async def main() -> None:
        work = work_of(samples.Unlucky("be_killed"))
        async with opened(CpuPool(1), work) as pool:
            bad = work.claim_of(7).index
            order = [bad, *(i for i in range(len(work.plan)) if i != bad)]
            results = await asyncio.gather(*(work.batch(pool, i) for i in order), return_exceptions=True)
            assert all(isinstance(result, DeviceLost) and "SIGKILL" in str(result) for result in results)
            with pytest.raises(DeviceLost):
                await work.batch(pool, order[1])
            await pool.open(work.job())
            assert (await work.batch(pool, order[1]))[1] == work.plan.ids(order[1]).tolist()

    run(main())


def test_an_idle_worker_that_dies_is_not_asked(run, work):
    """A worker that was killed while it had nothing to do costs nothing."""

    async def main() -> None:
        async with opened(CpuPool(2), work) as pool:
            os.kill(children()[0], signal.SIGKILL)
            await until(lambda: len(children()) == 1)
            assert len(await work.epoch_of(pool)) == len(work.plan)

    run(main())


def test_death_is_seen_without_pidfd(run, work_of, monkeypatch):
    """Where the kernel or a sandbox has no pidfd, a dead worker is named all the same."""

    def refused(pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)

    async def main() -> None:
        work = work_of(samples.Unlucky("be_killed"))
        async with opened(CpuPool(1), work) as pool:
            with pytest.raises(DeviceLost, match="was killed by SIGKILL"):
                await pool.preprocess(work.claim_of(7))
        await until(lambda: not any(thread.name.startswith("ddlp-wait") for thread in threading.enumerate()))

    run(main())


def test_a_job_that_cannot_be_pickled_is_refused(run, work_of):
    """What workers cannot be given is named by its path, before any process starts."""

    async def main() -> None:
        data = samples.Rows()
        data.transform = [str, lambda x: x]
        async with aclosing(CpuPool(2)) as pool:
            with pytest.raises(UsageError, match=r"not picklable.*dataset\.transform\[1\]: <function .*<lambda>"):
                await pool.open(work_of(data).job())
            assert not children()

    run(main())


def test_a_worker_that_cannot_start_is_explained(run, work_of):
    """An exception at start, of worker_init_fn for one, ends `open` with its text, and all workers with it."""

    async def main() -> None:
        async with aclosing(CpuPool(2)) as pool:
            with pytest.raises(DataError, match="ValueError: worker 0 will not start") as caught:
                await pool.open(work_of(samples.Rows(), worker_init_fn=samples.fail_to_start).job())
            assert isinstance(caught.value.__cause__, ValueError)

    run(main())


def test_a_device_belongs_to_one_loader(run, work, work_of):
    """A second loader with the same device is told so."""

    async def main() -> None:
        async with opened(CpuPool(1), work) as pool:
            with pytest.raises(UsageError, match="cpu0 works for another loader"):
                await pool.open(work_of(samples.Rows()).job())

    run(main())


@pytest.mark.parametrize("options", [{"workers": 0}, {"cpus": []}])
def test_impossible_numbers_are_refused(options):
    """A pool without workers makes no sense."""
    with pytest.raises(UsageError, match="at least one worker"):
        CpuPool(**options)


def test_workers_keep_to_their_cores(run, work):
    """`cpus` confines the workers, and is their default number."""
    core = min(os.sched_getaffinity(0))

    async def main() -> None:
        async with opened(CpuPool(cpus=[core]), work) as pool:
            await work.batch(pool, 0)
            (child,) = children()
            assert os.sched_getaffinity(child) == {core}

    run(main())


# --- the end ---------------------------------------------------------------------------------------------------------


def test_close_ends_what_is_in_flight(run, work_of):
    """Closing ends batches that are being made or wait in line with ClosedError; twice is fine."""

    async def main() -> None:
        work = work_of(samples.Unlucky("hang"))
        async with opened(CpuPool(1), work) as pool:
            bad = work.claim_of(7).index
            tasks = [asyncio.ensure_future(work.batch(pool, bad)) for _ in range(4)]
            await asyncio.sleep(0.05)
            await pool.aclose()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [ClosedError] * 4
            await pool.aclose()
            with pytest.raises(ClosedError):
                await pool.preprocess(work.claim(0))

    run(main())
    assert not children()


def test_opening_is_bounded_in_time(run, work_of):
    """A worker that does not get ready in time ends `open` with DeviceLost, naming it; nothing is left."""

    async def main() -> None:
        async with aclosing(CpuPool(1)) as pool:
            with pytest.raises(DeviceLost, match=r"cpu0 \(process \d+\) did not open the data set within 0\.001 s"):
                await pool.open(work_of(samples.Rows()).job(timeout_s=0.001))

    run(main())


def test_a_cancelled_open_leaves_nothing(run, work):
    """Cancelling `open` at any moment leaves a device that can be opened again, or closed."""

    async def main() -> None:
        async with aclosing(CpuPool(2)) as pool:
            for delay in (0.0, 0.005, 0.05):
                task = asyncio.ensure_future(pool.open(work.job()))
                await asyncio.sleep(delay)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await pool.open(work.job())
            assert (await work.batch(pool, 0))[1] == work.plan.ids(0).tolist()

    run(main())
