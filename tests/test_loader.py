"""The loader as people use it: real worker processes, a real emulated device, real files."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ddlp
from ddlp import HEAD, MTE, TAIL, WRR, CpuPool, EmulatedCsd, Loader, Replay
from ddlp.data.sampling import Plan
from tests.conftest import processes, write_images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real

POLICIES = {"wrr": WRR, "mte": lambda: MTE(calibration_batches=2)}


def both(slowdown: float = 2.0) -> list[ddlp.Device]:
    return [CpuPool(workers=2), EmulatedCsd(slowdown=slowdown)]


class Numbers:
    """A data set in Python, whose sample `i` is (i, its square)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, np.array([index * index], dtype=np.int64)


@pytest.fixture
def arrays() -> ddlp.ArrayDataset:
    rows = np.arange(200, dtype=np.float32).reshape(50, 4)
    return ddlp.ArrayDataset(rows, np.arange(50))


# --- exactly once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_every_sample_once_per_epoch_on_both_sides(tmp_path: Path, policy: str, nothing_left: None) -> None:
    """Three epochs over 1,000 JPEG files: each epoch has every sample id once, and both sides took part."""
    folder = write_images(tmp_path, 1000, size=(24, 20))
    data = ddlp.ImageFolder(folder)
    recipe = ddlp.recipes.imagenet_train(16)
    with Loader(data, recipe, batch_size=25, shuffle=True, devices=both(), policy=POLICIES[policy]()) as loader:
        orders = []
        for _ in range(3):
            seen: list[int] = []
            for images, labels in loader:
                assert images.shape == (25, 3, 16, 16)
                assert images.dtype == torch.float32
                ids = loader.info.sample_ids
                assert [data.labels[id_] for id_ in ids] == labels.tolist()
                seen += ids
            assert sorted(seen) == list(range(1000))
            statistics = loader.statistics()
            assert statistics.delivered[HEAD] > 0
            assert statistics.delivered[TAIL] > 0
            orders.append(seen)
        assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("devices", ["both", "cpu", "csd"])
def test_both_loops_give_the_same_batches(small_images: Path, devices: str) -> None:
    """`for` and `async for` over one loader deliver the same samples, with one side or with two."""
    chosen = {"both": both, "cpu": lambda: [CpuPool(2)], "csd": lambda: [EmulatedCsd(slowdown=1.0)]}[devices]()
    loader = Loader(ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_eval(16, 20), batch_size=7, devices=chosen)

    async def gather() -> set[int]:
        async with loader:
            got: set[int] = set()
            async for _ in loader:
                got |= set(loader.info.sample_ids)
            return got

    plain = {id_ for _ in loader for id_ in loader.info.sample_ids}
    assert plain == asyncio.run(gather()) == set(range(60))


def test_a_wait_that_times_out_loses_no_batch(small_images: Path) -> None:
    """`asyncio.wait_for(anext(it), 0.001)` again and again, then on: every index arrives."""
    loader = Loader(ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_train(64), batch_size=5, devices=both())

    async def consume() -> list[int]:
        got: list[int] = []
        async with loader:
            batches = aiter(loader)
            while True:
                try:
                    await asyncio.wait_for(anext(batches), 0.001)
                    got.append(loader.info.index)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    return got

    assert sorted(asyncio.run(consume())) == list(range(12))


# --- same bytes ------------------------------------------------------------------------------------------------------


def contents(loader: Loader, epochs: int) -> list[dict[int, bytes]]:
    """Per epoch: the bytes of every sample."""
    found: list[dict[int, bytes]] = []
    for _ in range(epochs):
        epoch: dict[int, bytes] = {}
        for batch in loader:
            for row, id_ in enumerate(loader.info.sample_ids):
                epoch[id_] = b"".join(part[row].numpy().tobytes() for part in batch)
        found.append(epoch)
    return found


def test_a_sample_has_the_same_bytes_whoever_makes_it(small_images: Path, nothing_left: None) -> None:
    """CPU alone, CSD alone, MTE, WRR and Replay: the same bytes for each sample and epoch, new ones in each epoch."""
    data, recipe = ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_train(32)

    def run(devices: list[ddlp.Device], policy: Any) -> list[dict[int, bytes]]:
        with Loader(data, recipe, batch_size=7, shuffle=True, seed=5, devices=devices, policy=policy) as loader:
            return contents(loader, 2)

    reference = run([CpuPool(workers=1)], "wrr")
    assert all(reference[0][id_] != reference[1][id_] for id_ in range(60)), "the augmentation repeats"
    assert run([CpuPool(workers=3)], "wrr") == reference
    assert run([EmulatedCsd(slowdown=1.0)], "wrr") == reference
    assert run(both(), MTE(calibration_batches=2)) == reference
    assert run(both(), WRR(weights=(2, 1))) == reference


def test_replay_gives_the_recorded_order(small_images: Path) -> None:
    """The order of a WRR epoch, which timing decided, comes again from its record, with the same bytes."""
    data, recipe = ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_train(32)
    with Loader(data, recipe, batch_size=4, shuffle=True, devices=both(), policy="wrr") as loader:
        first = [(loader.info.index, loader.info.side, images.clone()) for images, _ in loader]
        record = loader.order
    with Loader(data, recipe, batch_size=4, shuffle=True, devices=both(), policy=Replay(record)) as loader:
        again = [(loader.info.index, loader.info.side, images.clone()) for images, _ in loader]
        assert loader.order == record
    assert [item[:2] for item in again] == [item[:2] for item in first]
    assert all(torch.equal(one[2], other[2]) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("recipe", ["imagenet_train", "cifar_eval"])
def test_normalising_on_the_target_changes_nothing(small_images: Path, recipe: str) -> None:
    """Normalize(where="target"): uint8 comes from the devices, and the loop gets the very same floats."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 9, 9, 3), dtype=np.uint8)
    data = ddlp.ImageFolder(small_images) if recipe == "imagenet_train" else ddlp.ArrayDataset(pixels, np.arange(20))
    plain = getattr(ddlp.recipes, recipe)()
    *first, last = plain
    moved = ddlp.Recipe([*first, ddlp.data.ops.Normalize(last.mean, last.std, where="target")])
    assert moved.digest == plain.digest

    def run(recipe: ddlp.Recipe) -> tuple[list[torch.Tensor], Any]:
        with Loader(data, recipe, batch_size=7, shuffle=True, devices=[CpuPool(1)], policy="mte") as loader:
            return [images.clone() for images, _ in loader], loader.state_dict()

    (one, state), (other, other_state) = run(plain), run(moved)
    assert state == other_state
    assert one[0].dtype == other[0].dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_only_the_last_step_can_run_on_the_target(arrays: ddlp.ArrayDataset) -> None:
    """Cutout after Normalize(where="target"), and pixels that are no bytes, are refused with the reason."""
    images = ddlp.ArrayDataset(np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4))
    normalize = ddlp.data.ops.Normalize((0.5,) * 3, (0.5,) * 3, where="target")
    with pytest.raises(ddlp.UsageError, match="Cutout"):
        Loader(images, ddlp.Recipe([normalize, ddlp.data.ops.Cutout(2)]))
    floats = ddlp.ArrayDataset(np.zeros((4, 8, 8, 3), np.float32), np.zeros(4))
    with pytest.raises(ddlp.UsageError, match="uint8"):
        Loader(floats, ddlp.Recipe([normalize]))
    with pytest.raises(ddlp.UsageError, match="where"):
        ddlp.data.ops.Normalize((0.5,), (0.5,), where="elsewhere")


# --- memory ----------------------------------------------------------------------------------------------------------


def test_batches_that_are_kept_stay_what_they_were(arrays: ddlp.ArrayDataset) -> None:
    """A whole epoch in a list, and slices of batches, hold the right data, also after the loader is closed."""
    with Loader(arrays, batch_size=3, devices=both()) as loader:
        kept = [(loader.info.sample_ids, rows, rows[1:]) for rows, _ in loader]
    gc.collect()
    for ids, rows, part in kept:
        assert rows.tolist() == [[4.0 * id_ + k for k in range(4)] for id_ in ids]
        assert part.tolist() == rows[1:].tolist()


def test_many_short_epochs_leave_everything_flat(arrays: ddlp.ArrayDataset, nothing_left: None) -> None:
    """200 epochs of 3 batches: memory, threads, file descriptors, processes and /dev/shm stay as they were."""

    def measure() -> dict[str, int]:
        gc.collect()
        return {
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "processes": len(processes()),
            "shm": len(os.listdir("/dev/shm")),
        }

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    with Loader(arrays, batch_size=17, shuffle=True, devices=both()) as loader:
        for epoch in range(200):
            assert sum(len(labels) for _, labels in loader) == 50
            if epoch == 20:
                early, early_bytes = measure(), resident()
        assert measure() == early
        assert resident() - early_bytes < 8 << 20
        assert loader.statistics().epoch == 199


def test_first_batch_of_a_later_epoch_comes_at_once(small_images: Path) -> None:
    """From the second epoch on, the first batch arrives within the time of two batches plus 20 ms."""
    data, recipe = ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_train(224)
    with Loader(data, recipe, batch_size=10, shuffle=True, num_workers=2) as loader:
        waits, paces = [], []
        for _ in range(6):
            begun = time.perf_counter()
            batches = iter(loader)
            next(batches)
            waits.append(time.perf_counter() - begun)
            rest = sum(1 for _ in batches)
            paces.append((time.perf_counter() - begun) / (rest + 1))
        assert sorted(waits[1:])[2] < 2 * sorted(paces[1:])[2] + 0.020, (waits, paces)


# --- the end ---------------------------------------------------------------------------------------------------------


def test_breaking_off_leaves_the_loader_usable(small_images: Path, nothing_left: None) -> None:
    """`break`, an exception in the body, and a dropped iterator end the epoch; the next one is complete."""
    data, recipe = ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_train(32)
    with Loader(data, recipe, batch_size=4, devices=both()) as loader:
        for _ in loader:
            break
        with pytest.raises(ZeroDivisionError):
            sum(1 / 0 for _ in loader)
        next(iter(loader))
        assert sum(len(labels) for _, labels in loader) == 60
        assert loader.statistics().epoch == 3


def test_a_dropped_loader_ends_its_processes(arrays: ddlp.ArrayDataset, nothing_left: None) -> None:
    """Without close() and in the middle of an epoch: collecting the loader is enough."""
    loader = Loader(arrays, batch_size=3, devices=both())
    batches = iter(loader)
    next(batches)
    before = processes()
    assert before
    del loader, batches
    gc.collect()
    deadline = time.monotonic() + 5.0
    while processes() & before and time.monotonic() < deadline:
        time.sleep(0.01)
    while any(thread.name == "ddlp" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)


def run_script(body: str, *, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_the_interpreter_ends_quickly_and_quietly(small_images: Path) -> None:
    """After one batch of a hundred, without close(): exit code 0, nothing on stderr, within a second."""
    done = run_script(f"""
        import time, atexit, ddlp
        data = ddlp.ImageFolder({str(small_images)!r})
        loader = ddlp.Loader(data, ddlp.recipes.imagenet_train(32), batch_size=1,
                             devices=[ddlp.CpuPool(2), ddlp.EmulatedCsd()])
        batches = iter(loader)
        next(batches)
        print(time.time())
    """)
    ended = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(done.stdout) < 1.5


def test_built_in_data_needs_no_main_guard(small_images: Path, tmp_path: Path) -> None:
    """A plain script without `if __name__ == "__main__"` runs once, although workers are spawned."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import ddlp
        print("main runs")
        data = ddlp.ImageFolder({str(small_images)!r})
        with ddlp.Loader(data, ddlp.recipes.imagenet_eval(16, 20), batch_size=20) as loader:
            print(sum(len(labels) for _, labels in loader))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("main runs\n60\n", "")


def test_importing_ddlp_imports_no_torch() -> None:
    """`import ddlp` is cheap; torch comes with the first Loader."""
    done = run_script("import sys, ddlp; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout == "False False\n"


# --- one iteration at a time -----------------------------------------------------------------------------------------


def test_a_second_iteration_is_refused_at_once(arrays: ddlp.ArrayDataset) -> None:
    """Two iterations over one loader would split the data silently: the second is a RuntimeError, the first goes on."""
    with Loader(arrays, batch_size=10) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(RuntimeError, match="already being iterated"):
            iter(loader)
        assert sum(1 for _ in batches) == 4
        assert sum(1 for _ in loader) == 5


def test_two_tasks_on_one_iteration_are_refused(small_images: Path) -> None:
    """Two `anext` at the same time on one iterator are an error in one of them, and lose nothing."""
    loader = Loader(ddlp.ImageFolder(small_images), ddlp.recipes.imagenet_train(64), batch_size=5)

    async def consume() -> int:
        async with loader:
            batches = aiter(loader)
            first = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError):
                await anext(batches)
            await first
            return 1 + len([batch async for batch in batches])

    assert asyncio.run(consume()) == 12


def test_a_closed_loader_says_so(arrays: ddlp.ArrayDataset) -> None:
    """Iterating after close() raises; closing twice does not; what can be told is still told."""
    loader = Loader(arrays, batch_size=10)
    next(iter(loader))
    loader.close()
    loader.close()
    assert "closed" in repr(loader)
    assert loader.statistics().batches == 5
    assert loader.state_dict()["epoch"] == 0
    with pytest.raises(ddlp.ClosedError):
        iter(loader)


# --- any data set ----------------------------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


class Structured:
    """Samples of many kinds."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "name": f"sample {index}",
            "point": Point(torch.full((2,), float(index)), np.float32(index)),
            "parts": [index, index / 2, True],
        }


def test_a_python_data_set_keeps_its_structure() -> None:
    """dict, namedtuple, list, strings and numbers come out as default_collate makes them."""
    with Loader(Structured(), batch_size=4) as loader:
        first, second = list(loader)
    assert first["name"] == [f"sample {i}" for i in range(4)]
    assert isinstance(first["point"], Point)
    assert first["point"].x.tolist() == [[float(i)] * 2 for i in range(4)]
    assert first["parts"][0].tolist() == [0, 1, 2, 3]
    assert first["parts"][1].dtype == torch.float64
    assert second["parts"][2].tolist() == [True, True]


def test_samplers_choose_the_samples() -> None:
    """`sampler` and `batch_sampler` mean what they mean for DataLoader."""
    with Loader(Numbers(20), batch_size=3, sampler=[5, 3, 1, 19, 0]) as loader:
        assert [ids.tolist() for ids, _ in loader] == [[5, 3, 1], [19, 0]]
        assert len(loader) == 2
    with Loader(Numbers(20), batch_sampler=[[1], [2, 3, 4]]) as loader:
        assert [squares.flatten().tolist() for _, squares in loader] == [[1], [4, 9, 16]]


@pytest.mark.parametrize(("n", "batch_size"), [(0, 4), (1, 4), (2, 1), (3, 4), (4, 4), (5, 4), (7, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_sizes_at_the_edges(n: int, batch_size: int, drop_last: bool) -> None:
    """Empty, one sample, one less and one more than a batch: len() is right and every sample that counts is there."""
    with Loader(Numbers(n), batch_size=batch_size, drop_last=drop_last, num_workers=1) as loader:
        batches = [ids.tolist() for ids, _ in loader]
        assert len(batches) == len(loader)
    whole = n - n % batch_size if drop_last else n
    assert [id_ for batch in batches for id_ in batch] == list(range(whole))


def test_ranks_share_an_epoch(arrays: ddlp.ArrayDataset) -> None:
    """Every sample goes to one rank, and all ranks have the same number of batches."""
    seen: list[int] = []
    lengths = set()
    for rank in range(2):
        with Loader(arrays, batch_size=4, shuffle=True, rank=rank, world_size=2, num_workers=1) as loader:
            for _ in loader:
                seen += loader.info.sample_ids
            lengths.add(len(loader))
    assert sorted(seen) == list(range(50))
    assert len(lengths) == 1


def test_epochs_count_by_themselves_and_can_be_set(arrays: ddlp.ArrayDataset) -> None:
    """Without set_epoch each epoch has an order of its own; with it, the order is that of the epoch named."""

    def ids(loader: Loader) -> list[int]:
        return [id_ for _ in loader for id_ in loader.info.sample_ids]

    with Loader(arrays, batch_size=8, shuffle=True, num_workers=1) as loader:
        first, second = ids(loader), ids(loader)
        assert first != second
        loader.set_epoch(0)
        assert ids(loader) == first
        assert ids(loader) == second


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("used", [0, 1, 5, 12, 13])
def test_a_state_gives_exactly_the_rest(arrays: ddlp.ArrayDataset, policy: str, used: int) -> None:
    """Stop after any batch, save as JSON, load into a loader with other devices: exactly what was not used comes."""

    def make(devices: list[ddlp.Device]) -> Loader:
        return Loader(arrays, batch_size=4, shuffle=True, seed=3, devices=devices, policy=POLICIES[policy]())

    with make(both()) as loader:
        seen: list[int] = []
        batches = iter(loader)
        for _ in range(used):
            next(batches)
            seen += loader.info.sample_ids
        if used == 13:
            assert next(batches, None) is None
        state = json.loads(json.dumps(loader.state_dict()))
    with make([CpuPool(workers=1)]) as loader:
        loader.load_state_dict(state)
        if used < 13:
            for _ in loader:
                seen += loader.info.sample_ids
            assert sorted(seen) == list(range(50))
        next(iter(loader))
        assert loader.info.epoch == 1


def test_a_state_of_another_loader_is_refused(arrays: ddlp.ArrayDataset) -> None:
    """The message names what differs."""
    state = Loader(arrays, batch_size=4, seed=1).state_dict()
    with pytest.raises(ddlp.UsageError, match="seed was 1 and is 2"):
        Loader(arrays, batch_size=4, seed=2).load_state_dict(state)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"policy": "fifo"}, "unknown policy 'fifo'"),
        ({"timeout": -1}, "timeout must be at least 0"),
        ({"prefetch": 0}, "prefetch must be at least 1"),
        ({"target": "abacus"}, "abacus"),
        ({"transport": "pigeon"}, "'pigeon'"),
        ({"on_bad_sample": "ignore"}, "'ignore'"),
        ({"devices": []}, "devices is empty"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"sampler": [0], "batch_sampler": [[0]]}, "not both"),
        ({"recipe": "resize"}, "recipe"),
    ],
)
def test_arguments_that_make_no_sense_are_named(arrays: ddlp.ArrayDataset, arguments: Any, words: str) -> None:
    """A wrong argument raises at once, before any process starts, and the message names it."""
    with pytest.raises(ValueError, match=words):
        Loader(arrays, **arguments)


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    """The folder, the patterns and what was seen are in the message."""
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    with pytest.raises(ddlp.DataError) as caught:
        ddlp.ImageFolder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert ".jpg" in str(caught.value)
    assert "notes.txt" in str(caught.value)


@pytest.mark.parametrize("devices", ["cpu", "csd", "both"])
@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_an_unreadable_image_is_named(tmp_path: Path, devices: str, damage: str) -> None:
    """Wherever it is read, a damaged file ends the epoch with its path and sample id; the loader stays usable."""
    data = ddlp.ImageFolder(write_images(tmp_path, 12))
    path = data.path(7)
    with open(path, "rb") as file:
        good = file.read()
    with open(path, "wb") as file:
        file.write({"cut": good[: len(good) // 2], "empty": b"", "text": b"not an image"}[damage])
    chosen = {"both": both, "cpu": lambda: [CpuPool(2)], "csd": lambda: [EmulatedCsd(slowdown=1.0)]}[devices]()
    with Loader(data, ddlp.recipes.imagenet_eval(16, 20), batch_size=2, devices=chosen) as loader:
        with pytest.raises(ddlp.SampleError) as caught:
            list(loader)
        assert caught.value.sample_id == 7
        assert caught.value.path == path
        assert path in str(caught.value)
        with open(path, "wb") as file:
            file.write(good)
        assert sum(len(labels) for _, labels in loader) == 12


def test_a_recipe_that_does_not_fit_names_the_shapes() -> None:
    """A crop that is larger than the data is refused before anything starts."""
    small = ddlp.ArrayDataset(np.zeros((5, 8, 8, 3), np.uint8), np.zeros(5, np.int64))
    with pytest.raises(ddlp.UsageError, match=r"8.*8"):
        Loader(small, ddlp.Recipe([ddlp.data.ops.CenterCrop(32)]))


class Unpicklable(Numbers):
    def __init__(self) -> None:
        super().__init__(4)
        self.transform = {"steps": [str, lambda x: x]}


def test_what_cannot_be_pickled_is_named() -> None:
    """The attribute path to the culprit is in the message, and nothing hangs."""
    with (
        Loader(Unpicklable(), batch_size=2) as loader,
        pytest.raises(ddlp.UsageError, match=r"dataset\.transform\['steps'\]\[1\]"),
    ):
        next(iter(loader))


def test_python_data_on_the_device_is_refused_with_advice() -> None:
    """A device near the data cannot run the script's own classes: said at the first batch, with what to do."""
    with (
        Loader(Numbers(8), batch_size=2, devices=both()) as loader,
        pytest.raises(ddlp.UsageError, match="CpuPool"),
    ):
        next(iter(loader))


def test_dataloader_arguments_are_accepted_with_a_warning(arrays: ddlp.ArrayDataset) -> None:
    """Code written for DataLoader runs; what has no meaning here is said once."""
    with pytest.warns(UserWarning, match="prefetch_factor=4"):
        loader = Loader(arrays, batch_size=10, prefetch_factor=4, num_workers=1)
    with loader:
        assert len(list(loader)) == len(loader) == len(Plan(50, 10, False, False, 0, 0))


# --- telling ---------------------------------------------------------------------------------------------------------


def test_it_tells_what_happened(arrays: ddlp.ArrayDataset) -> None:
    """repr, info, statistics and explain name the data set, the devices, the split and the waiting."""
    with Loader(arrays, batch_size=5, devices=both(), policy="wrr") as loader:
        with pytest.raises(ddlp.UsageError):
            _ = loader.info
        with pytest.raises(ddlp.UsageError):
            loader.statistics()
        for _ in loader:
            assert loader.info.device in {"cpu0", "csd0"}
        statistics = loader.statistics()
        assert sum(statistics.delivered.values()) == statistics.batches == 10
        assert set(statistics.devices) == {"cpu0", "csd0"}
        assert statistics.host_bytes > 0
        words = loader.explain()
        for word in ("10 of 10 batches", "cpu0", "csd0", "waited"):
            assert word in words
        assert "ArrayDataset of 50 in 10 batches" in repr(loader)


@pytest.fixture(autouse=True)
def _clean_loop() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.parametrize("moment_s", [0.0, 0.15, 0.4])
def test_ctrl_c_ends_a_script_with_one_traceback(small_images: Path, moment_s: float) -> None:
    """SIGINT to the whole process group, as a terminal sends it: one KeyboardInterrupt, and no process is left."""
    body = f"""
        import time, ddlp
        data = ddlp.ImageFolder({str(small_images)!r})
        loader = ddlp.Loader(data, ddlp.recipes.imagenet_train(64), batch_size=4,
                             devices=[ddlp.CpuPool(2), ddlp.EmulatedCsd()])
        print("ready", flush=True)
        while True:
            for _ in loader:
                time.sleep(0.01)
    """
    command = [sys.executable, "-c", textwrap.dedent(body)]
    script = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"
    time.sleep(moment_s)
    os.killpg(script.pid, signal.SIGINT)
    _, errors = script.communicate(timeout=15)
    assert script.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    deadline = time.monotonic() + 5.0
    while (left := agents_of(script.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def agents_of(pid: int) -> list[str]:
    """The command lines of agents that this process has started."""
    lines = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline") as file:
                line = file.read().replace("\0", " ")
        except OSError:
            continue
        if f"--parent={pid} " in line:
            lines.append(line)
    return lines


# --- states at odd moments, and other ways to misuse a loader --------------------------------------------------------


def use(loader: Loader, count: int) -> tuple[Any, list[int]]:
    """Begin an iteration, take `count` batches; the iterator and the samples."""
    batches, seen = iter(loader), []
    for _ in range(count):
        next(batches)
        seen += loader.info.sample_ids
    return batches, seen


def test_a_resumed_sampler_must_draw_the_same(arrays: ddlp.ArrayDataset) -> None:
    """A state counts batches of what the sampler drew; where it draws otherwise, resuming is refused, not wrong."""

    def make(ids: list[int]) -> Loader:
        return Loader(arrays, batch_size=5, sampler=ids, num_workers=1)

    drawn = list(np.random.default_rng(0).permutation(50))
    with make(drawn) as loader:
        _, seen = use(loader, 3)
        state = loader.state_dict()
    with make(drawn) as loader:
        loader.load_state_dict(state)
        for _ in loader:
            seen += loader.info.sample_ids
    assert sorted(seen) == list(range(50))
    with make(drawn[::-1]) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ddlp.UsageError, match="same samples again"):
            iter(loader)


def test_a_state_of_a_rearranged_replay_is_refused_elsewhere(arrays: ddlp.ArrayDataset) -> None:
    """Under Replay of an odd history the row is another one; a state of it does not fit another policy."""
    record = ddlp.Order((0, 2, 1, 3, 4), (HEAD, HEAD, HEAD, TAIL, TAIL))
    with Loader(arrays, batch_size=10, num_workers=1, policy=Replay(record)) as loader:
        _, seen = use(loader, 2)
        assert seen == [*range(10), *range(20, 30)]
        state = loader.state_dict()
    with Loader(arrays, batch_size=10, num_workers=1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ddlp.UsageError, match="Replay"):
            iter(loader)


def test_what_was_used_before_the_end_counts_as_used(tmp_path: Path) -> None:
    """After an error, and after close() and one more next(), the state still has the batch that was in hand."""
    data = ddlp.ImageFolder(write_images(tmp_path, 40))
    with open(data.path(30), "wb"):
        pass
    with Loader(data, ddlp.recipes.imagenet_eval(8, 8), batch_size=2, num_workers=1) as loader:
        seen: list[int] = []
        with pytest.raises(ddlp.SampleError):
            seen.extend(id_ for _ in loader for id_ in loader.info.sample_ids)
        [[first, _]] = loader.state_dict()["queue"]["left"]
        assert 2 * first == len(seen)
        batches, seen = use(loader, 3)
    left = loader.state_dict()["queue"]["left"]
    with pytest.raises(ddlp.ClosedError):
        list(batches)
    assert left == loader.state_dict()["queue"]["left"] == [[3, 20]]


def test_loading_a_state_while_iterating_is_refused(arrays: ddlp.ArrayDataset) -> None:
    """It would leave the loader with two truths about where it is."""
    with Loader(arrays, batch_size=5, num_workers=1) as loader:
        state = loader.state_dict()
        batches, _ = use(loader, 2)
        with pytest.raises(RuntimeError, match="iterated"):
            loader.load_state_dict(state)
        del batches
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_set_epoch_is_what_a_state_speaks_of(arrays: ddlp.ArrayDataset) -> None:
    """After break and set_epoch, the state is of the epoch that was set."""
    with Loader(arrays, batch_size=5, num_workers=1) as loader:
        for _ in loader:
            break
        assert loader.state_dict()["epoch"] == 0
        loader.set_epoch(1)
        assert (loader.state_dict()["epoch"], loader.state_dict()["queue"]) == (1, None)


def test_a_loop_that_counts_its_batches_may_go_on(arrays: ddlp.ArrayDataset) -> None:
    """Taking exactly len(loader) batches, without asking for the end, is a whole epoch: the next may begin."""
    with Loader(arrays, batch_size=5, shuffle=True, num_workers=1) as loader:
        kept = []
        for _ in range(3):
            batches, seen = use(loader, len(loader))
            kept.append(batches)
            assert sorted(seen) == list(range(50))
        assert loader.statistics().epoch == 2


def test_statistics_count_what_the_loop_was_given(arrays: ddlp.ArrayDataset) -> None:
    """Batches that wait in the mailbox are not delivered yet."""
    with Loader(arrays, batch_size=5, num_workers=1, prefetch=3) as loader:
        _batches, _ = use(loader, 1)
        time.sleep(0.1)
        assert sum(loader.statistics().delivered.values()) == len(loader.order.batches) == 1


def test_a_batch_whose_unpacking_fails_is_not_lost(arrays: ddlp.ArrayDataset) -> None:
    """When tensors cannot be made, as on a full accelerator, asking again gives the same batch."""
    with Loader(arrays, batch_size=10, num_workers=1) as loader:
        unpack, calls = loader._unpack, []

        def failing(batch: Any) -> Any:
            calls.append(batch.claim.index)
            if len(calls) == 2:
                raise MemoryError("no room on the accelerator")
            return unpack(batch)

        loader._unpack = failing  # type: ignore[assignment]
        batches, got = iter(loader), []
        while True:
            try:
                next(batches)
                got.append(loader.info.index)
            except MemoryError:
                continue
            except StopIteration:
                break
        assert got == [0, 1, 2, 3, 4]


def test_an_import_that_is_broken_off_does_not_wedge_the_loader(
    arrays: ddlp.ArrayDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the first iteration imports torch: the next iteration works."""
    with Loader(arrays, batch_size=10, num_workers=1) as loader:
        with monkeypatch.context() as patch:

            def interrupted() -> Any:
                raise KeyboardInterrupt

            patch.setattr("ddlp.loader._import_torch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                iter(loader)
        gc.collect()
        assert sum(len(labels) for _, labels in loader) == 50


def test_a_store_bounds_python_batches_too() -> None:
    """With store_bytes, and batches whose size nobody knows beforehand, a slow loop does not fill the memory."""
    pool = CpuPool(workers=1, store_bytes=1 << 20)
    with Loader(Numbers(400), batch_size=1, devices=[pool]) as loader:
        batches, _ = use(loader, 1)
        time.sleep(0.3)
        assert pool.statistics().made < 20
        del batches


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sampler": [0, 50]}, "sample 50"),
        ({"sampler": iter([0, 1])}, "iterator"),
        ({"sampler": [0], "shuffle": True}, "shuffle"),
        ({"sampler": [0], "rank": 1, "world_size": 2}, "world_size"),
        ({"num_workers": 2, "devices": [CpuPool(1)]}, "num_workers"),
        ({"devices": ["warp://"]}, "warp"),
        ({"batch_size": 2.5}, "batch_size"),
    ],
)
def test_arguments_that_would_do_nothing_are_refused(arrays: ddlp.ArrayDataset, arguments: Any, words: str) -> None:
    """What has no meaning, or would fail in a worker, is said where it was written."""
    with pytest.raises(ValueError, match=words):
        iter(Loader(arrays, **arguments))


def test_a_device_may_stand_in_the_list_once(arrays: ddlp.ArrayDataset) -> None:
    """One device at two places would be opened twice."""
    pool = CpuPool(1)
    with pytest.raises(ddlp.UsageError, match="twice"):
        Loader(arrays, devices=[pool, pool])


def test_looking_at_a_loader_draws_no_sampler(arrays: ddlp.ArrayDataset) -> None:
    """The constructor, len and repr leave the sampler, and so the random state that it uses, alone."""
    drawn = []

    class Sampler:
        def __len__(self) -> int:
            return 50

        def __iter__(self) -> Iterator[int]:
            drawn.append(1)
            return iter(range(50))

    with Loader(arrays, batch_size=8, sampler=Sampler(), num_workers=1) as loader:
        drawn.clear()
        assert len(loader) == 7
        assert "7 batches" in repr(loader)
        assert not drawn
        assert len(list(loader)) == 7
        assert len(drawn) == 1


def test_a_stopped_process_goes_on(tmp_path: Path, small_images: Path) -> None:
    """SIGSTOP for longer than the timeout, then SIGCONT: no device is taken for lost."""
    body = f"""
        import sys, ddlp
        data = ddlp.ImageFolder({str(small_images)!r})
        with ddlp.Loader(data, ddlp.recipes.imagenet_train(200), batch_size=1, timeout=2.0, num_workers=1) as loader:
            for number in range(6):
                for _ in loader:
                    pass
                print(number, flush=True)
            print(loader.statistics().lost)
    """
    script = subprocess.Popen([sys.executable, "-c", textwrap.dedent(body)], stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    assert script.stdout.readline() == "0\n"
    os.kill(script.pid, signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(script.pid, signal.SIGCONT)
    out, _ = script.communicate(timeout=20)
    assert (script.returncode, out.splitlines()[-1]) == (0, "{}")
