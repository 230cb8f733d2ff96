"""The decoded cache: the same bytes as decoding each time, and nothing is decoded twice."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ddlp
from ddlp import MTE, WRR, CpuPool, DecodedCache, EmulatedCsd, ImageFolder, Loader, Recipe, UsageError
from ddlp.data import decode, image_rows, recipes
from ddlp.data.maker import Preparation
from ddlp.data.ops import CenterCrop, Decode, Map, Normalize, RandomCrop, RandomHorizontalFlip, Resize, Shrink
from ddlp.data.shards import TarShards
from tests.conftest import processes, write_images
from tests.data.making import batches, plan_of
from tests.data.tars import write_tar

MEMORY = DecodedCache()
TRAIN = recipes.imagenet_train(48)
RECIPES = {
    "train": TRAIN,
    "uint8": recipes.imagenet_train(48, normalize=False),
    "eval": recipes.imagenet_eval(32, 40),
    "padding": Recipe([Decode(), RandomCrop(900, padding=500), Resize(20)]),
    "grey": Recipe([Decode("L"), Resize((30, 30)), RandomHorizontalFlip(), Normalize((0.5,), (0.5,))]),
    "python": Recipe([Decode(), Resize((30, 30)), Map(np.negative)]),
}


def cached(data: Any, recipe: Recipe, cache: DecodedCache = MEMORY) -> Preparation:
    whole, kept = cache.open(data, recipe)
    return Preparation(data, whole, kept=kept)


def epochs(preparation: Preparation, count: int = 2) -> list[list[list[bytes]]]:
    """The bytes of all batches of so many epochs."""
    return [
        [[array.tobytes() for array in batch] for batch in batches(preparation, plan_of(preparation, epoch=epoch))]
        for epoch in range(count)
    ]


def spoil(folder: Path) -> None:
    """Make every file unreadable in a way that its size and time do not show."""
    for path in folder.glob("*/*"):
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """30 JPEG files that a test may change."""
    return write_images(tmp_path / "images", 30)


# --- the same bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "pillow"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_same_bytes_as_without(photos: Path, name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of all modes and sizes, by the kernel and by Pillow: while they are kept, and when they are cropped."""
    data, recipe = ImageFolder(photos), RECIPES[name]
    without = epochs(Preparation(data, recipe))
    if not compiled:
        monkeypatch.setattr(image_rows, "kernel", lambda: None)
    assert epochs(cached(data, recipe)) == without


def test_nothing_is_decoded_twice(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second epoch on no file is read, and none is announced to be."""
    data = ImageFolder(files)
    preparation = cached(data, TRAIN)
    expected = epochs(Preparation(data, TRAIN), 3)
    assert epochs(preparation, 1) == expected[:1]
    spoil(files)
    monkeypatch.setattr(ImageFolder, "will_need", lambda *_: pytest.fail("a file is to be read"))
    assert epochs(preparation, 3) == expected


def test_images_in_tar_archives_are_kept_too(files: Path, tmp_path: Path) -> None:
    """A sample's stamp is that of its shard: the images of one that changes are decoded again, the others are not."""
    images = [path.read_bytes() for path in sorted(files.glob("*/*"))]
    shards = tmp_path / "shards"
    (shards / "all").mkdir(parents=True)
    for shard in range(3):
        members = [(f"{k}.{end}", data) for k in range(10) for end, data in (("jpg", images[k]), ("cls", b"%d" % k))]
        write_tar(shards / "all" / f"{shard}.tar", members)
    data = TarShards(shards / "all", keep_index=False)
    expected = epochs(Preparation(data, TRAIN), 3)
    preparation = cached(data, TRAIN)
    assert epochs(preparation) == expected[:2]
    spoil(shards)
    assert epochs(preparation, 3) == expected
    os.utime(shards / "all" / "1.tar")
    with pytest.raises(ddlp.SampleError, match=r"1\.tar"):
        epochs(preparation, 1)


def test_only_the_rows_of_the_crop_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel too: Pillow gets the crop, and a crop that reaches over an edge the whole image."""
    seen: list[tuple[int, ...]] = []
    image_of = decode.image_of
    monkeypatch.setattr(decode, "image_of", lambda pixels: seen.append(pixels.shape) or image_of(pixels))
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    for crop in ((10, 5, 20, 30), (0, 0, 50, 40), (30, 5, 21, 30), (-1, 0, 20, 20), (0, 30, 20, 11)):
        view = decode.View(50, 40).cropped(*crop).resized(9, 8).mirrored()
        whole = decode.pixels_of(image_of(pixels), view)
        assert np.array_equal(decode.part_of_pixels(pixels, view), whole)
    assert seen == [(20, 30, 3), *[(50, 40, 3)] * 4]


def test_without_room_files_are_decoded_each_time(files: Path) -> None:
    """A bound with room for some images, for none, or not even for the records: the same bytes, within the bound."""
    data = ImageFolder(files)
    expected = epochs(Preparation(data, TRAIN), 3)
    for nbytes, kept in ((1, 0), (30 * 48, 0), (30 * 48 + 3 * 48 * 36 * 3 + 7, 3)):
        preparation = cached(data, TRAIN, DecodedCache(nbytes=nbytes))
        assert epochs(preparation, 3) == expected
        assert preparation.kept is not None
        assert preparation.kept.used_nbytes == 30 * 48 + kept * 48 * 36 * 3


def test_a_changed_file_is_decoded_again(files: Path) -> None:
    """Its new pixels are kept in turn, be it another size or another time that shows the change."""
    data = ImageFolder(files)
    preparation = cached(data, TRAIN)
    epochs(preparation, 1)
    for id_, other in ((3, 4), (5, 6)):
        shutil.copyfile(data.path(other), data.path(id_))
    status = os.stat(data.path(7))
    shutil.copyfile(data.path(8), data.path(7))
    os.truncate(data.path(7), os.path.getsize(data.path(8)))
    os.utime(data.path(7), ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    expected = epochs(Preparation(data, TRAIN), 3)
    assert epochs(preparation, 1) == expected[:1]
    spoil(files)
    assert epochs(preparation, 3) == expected


def test_a_bad_file_is_named_and_not_kept(files: Path) -> None:
    """What cannot be decoded fails as it does without a cache, each time, until it is repaired."""
    data = ImageFolder(files)
    path = Path(data.path(9))
    good = path.read_bytes()
    path.write_bytes(good[:100])
    preparation = cached(data, TRAIN)
    for _ in range(2):
        with pytest.raises(ddlp.SampleError) as caught:
            epochs(preparation, 1)
        assert (caught.value.sample_id, caught.value.path) == (9, str(path))
    path.write_bytes(good)
    assert epochs(preparation) == epochs(Preparation(data, TRAIN))


# --- a smaller side --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, 40, 300])
def test_a_longest_side_is_part_of_the_recipe(photos: Path, side: int) -> None:
    """Keeping smaller images is the recipe with Shrink, on every device: its digest, its fingerprint, its bytes."""
    data = ImageFolder(photos)
    preparation = cached(data, TRAIN, DecodedCache(longest_side=side))
    explicit = Preparation(data, Recipe([Decode(), Shrink(side), *list(TRAIN)[1:]]))
    assert preparation.recipe == explicit.recipe
    assert preparation.fingerprint == explicit.fingerprint != Preparation(data, TRAIN).fingerprint
    assert epochs(preparation) == epochs(explicit)
    described = Preparation.described(*preparation.describe())
    assert epochs(described) == epochs(explicit)


def test_small_images_take_little_room(files: Path) -> None:
    """What is kept is the small image, also where the recipe says so itself."""
    data = ImageFolder(files)
    small = Recipe([Decode(), Shrink(24), CenterCrop(12)])
    for preparation in (cached(data, small), cached(data, TRAIN, DecodedCache(longest_side=24))):
        epochs(preparation, 1)
        assert preparation.kept is not None
        assert preparation.kept.used_nbytes == 30 * (48 + 24 * 18 * 3)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_the_next_run_decodes_nothing(files: Path, tmp_path: Path) -> None:
    """A folder keeps the pixels for whoever comes with the same files and decoding, whatever follows that."""
    data, cache = ImageFolder(files), DecodedCache(tmp_path / "kept")
    expected = {name: epochs(Preparation(data, RECIPES[name])) for name in ("train", "eval")}
    epochs(cached(data, TRAIN, cache), 1)
    spoil(files)
    for name, wanted in expected.items():
        assert epochs(cached(ImageFolder(files), RECIPES[name], cache)) == wanted


def test_what_makes_other_pixels_has_a_file_of_its_own(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder with the same names, another mode, another size, another Pillow: none sees the others' pixels."""
    other = write_images(tmp_path / "other", 30, seed=1)
    cache, small = DecodedCache(tmp_path / "kept"), DecodedCache(tmp_path / "kept", longest_side=20)
    for data in (ImageFolder(files), ImageFolder(other)):
        for recipe, chosen in ((TRAIN, cache), (RECIPES["grey"], cache), (TRAIN, small)):
            preparation = cached(data, recipe, chosen)
            assert epochs(preparation, 1) == epochs(Preparation(data, preparation.recipe), 1)
    assert len(os.listdir(tmp_path / "kept")) == 6
    monkeypatch.setattr(decode, "kernels", lambda: {"pillow": "99", "libjpeg_turbo": "1", "numpy": "1"})
    cached(ImageFolder(files), TRAIN, cache)
    assert len(os.listdir(tmp_path / "kept")) == 7


def test_damage_is_repaired(files: Path, tmp_path: Path) -> None:
    """A file full of junk, an empty one, one cut off: the next run has the same bytes, and mends it."""
    data, cache = ImageFolder(files), DecodedCache(tmp_path / "kept")
    expected = epochs(Preparation(data, TRAIN))
    epochs(cached(data, TRAIN, cache), 1)
    (path,) = (tmp_path / "kept").iterdir()
    whole = path.read_bytes()
    junk = np.random.default_rng(0).bytes(30 * 48)
    for damaged in (junk + whole[len(junk) :], b"", junk, whole[: len(whole) // 2]):
        path.unlink()
        path.write_bytes(damaged)
        assert epochs(cached(data, TRAIN, cache)) == expected


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"nbytes": 0}, {"nbytes": 1e9}, {"longest_side": -1}, {"longest_side": True}])
def test_numbers_are_checked(arguments: dict[str, Any]) -> None:
    """Each must be a positive whole number; the message names it."""
    with pytest.raises(UsageError, match=next(iter(arguments))):
        DecodedCache(**arguments)


def test_only_image_files_are_decoded(files: Path) -> None:
    """Arrays are decoded already, and a data set in Python decodes by itself: the message says to leave it out."""
    arrays = ddlp.ArrayDataset(np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4))
    for data, recipe in ((arrays, recipes.cifar_eval()), ([(1, 2)], TRAIN), (ImageFolder(files), None)):
        with pytest.raises(UsageError, match="leave `cache` out"):
            Loader(data, recipe, cache="decoded")
    with pytest.raises(UsageError, match="'encoded'"):
        Loader(ImageFolder(files), TRAIN, cache="encoded")


def test_a_folder_that_cannot_be_one(files: Path, tmp_path: Path) -> None:
    """A path that is a file already: the message names it and says why."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match=r"taken.*File exists"):
        Loader(ImageFolder(files), TRAIN, cache=DecodedCache(tmp_path / "taken"))


# --- loaders ---------------------------------------------------------------------------------------------------------


def contents(loader: Loader, count: int = 1) -> list[dict[int, bytes]]:
    """Per epoch: the bytes of every sample."""
    found: list[dict[int, bytes]] = []
    for _ in range(count):
        found.append({})
        for batch in loader:
            for row, id_ in enumerate(loader.info.sample_ids):
                found[-1][id_] = b"".join(part[row].numpy().tobytes() for part in batch)
    return found


def loader_of(files: Path, **arguments: Any) -> Loader:
    return Loader(ImageFolder(files), TRAIN, batch_size=4, shuffle=True, seed=7, **arguments)


def reference(files: Path, count: int = 3, **arguments: Any) -> list[dict[int, bytes]]:
    with loader_of(files, num_workers=1, **arguments) as loader:
        return contents(loader, count)


@pytest.mark.real
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_what_is_kept(files: Path, workers: int, nothing_left: None) -> None:
    """Whoever decoded an image, the others crop from it: the second epoch reads no file, and nothing is left behind."""
    expected = reference(files)
    with loader_of(files, num_workers=workers, cache="decoded") as loader:
        assert contents(loader) == expected[:1]
        spoil(files)
        assert contents(loader, 2) == expected[1:]


@pytest.mark.real
@pytest.mark.parametrize("policy", [MTE(split=0.5), WRR(weights=(1, 1))], ids=["mte", "wrr"])
@pytest.mark.parametrize("side", [None, 30])
def test_a_device_without_the_cache_gives_the_same_bytes(
    files: Path, policy: Any, side: int | None, nothing_left: None
) -> None:
    """The tail decodes each time, the head crops: each sample has the bytes that it has without a cache."""
    shrink = [] if side is None else [Shrink(side)]
    recipe = Recipe([Decode(), *shrink, *list(TRAIN)[1:]])
    with Loader(ImageFolder(files), recipe, batch_size=4, shuffle=True, seed=7, num_workers=1) as loader:
        expected = contents(loader, 3)
        state = loader.state_dict()
    devices = [CpuPool(workers=2), EmulatedCsd(slowdown=1)]
    cache = DecodedCache(longest_side=side)
    with loader_of(files, devices=devices, policy=policy, cache=cache) as loader:
        assert contents(loader, 3) == expected
        assert min(loader.statistics().delivered.values()) > 0
        loader.load_state_dict(state)  # refuses that of another recipe


@pytest.mark.real
def test_a_worker_that_is_killed_takes_nothing_along(files: Path, nothing_left: None) -> None:
    """One of three workers dies in the middle of an epoch, in each of four; what is kept stays right."""
    expected = reference(files, 5)
    before = processes()
    with loader_of(files, num_workers=3, cache="decoded") as loader:
        for epoch in range(4):
            found: dict[int, bytes] = {}
            for number, batch in enumerate(loader):
                for row, id_ in enumerate(loader.info.sample_ids):
                    found[id_] = b"".join(part[row].numpy().tobytes() for part in batch)
                if number == epoch:
                    os.kill(max(processes() - before), signal.SIGKILL)
            assert found == expected[epoch]
        assert contents(loader) == expected[4:]
        spoil(files)
        loader.set_epoch(0)
        assert contents(loader) == expected[:1]


@pytest.mark.real
def test_ranks_share_a_folder(files: Path, tmp_path: Path, nothing_left: None) -> None:
    """Two loaders at once, each with its share: what one has decoded the other crops in the next epoch."""
    expected = [reference(files, rank=rank, world_size=2) for rank in range(2)]
    cache = DecodedCache(tmp_path / "kept")
    ranks = [loader_of(files, num_workers=1, cache=cache, rank=rank, world_size=2) for rank in range(2)]
    for _ in zip(*ranks, strict=True):
        pass
    spoil(files)
    for loader, wanted in zip(ranks, expected, strict=True):
        loader.set_epoch(0)
        with loader:
            assert contents(loader, 3) == wanted
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.stat().st_size == 30 * (48 + 48 * 36 * 3)


@pytest.mark.real
def test_memory_goes_with_the_loader(files: Path, nothing_left: None) -> None:
    """The bound is half of what is free, shared among the ranks; closing, or failing to open, leaves nothing."""
    loaders = [loader_of(files, cache="decoded", world_size=world_size) for world_size in (1, 4)]
    bounds = [loader._preparation.kept.nbytes for loader in loaders]  # type: ignore[union-attr]
    assert bounds[0] == pytest.approx(4 * bounds[1], rel=0.2)
    for loader in loaders:
        loader.close()
    with pytest.raises(UsageError):
        loader_of(files, cache="decoded", policy="nonsense")
