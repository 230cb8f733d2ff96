"""TarShards: what a sample is, what its label, and that it is as good as a folder of images."""

import json
import os
import pickle

import numpy as np
import pytest

import ddlp
from ddlp.data import recipes
from ddlp.data.folder import ImageFolder
from ddlp.data.maker import Preparation
from ddlp.data.shards import TarShards
from ddlp.data.sources import open_source
from ddlp.data.tar import BLOCK
from ddlp.errors import DataError, SampleError, UsageError
from tests.data.making import batches
from tests.data.tars import png, samples, write_tar


def test_a_sample_is_an_image_and_its_label(tmp_path):
    """Shards in their order, samples in theirs; from both ends, and IndexError outside."""
    write_tar(tmp_path / "b.tar", samples(3, first=2))
    write_tar(tmp_path / "a.tar", samples(2))
    write_tar(tmp_path / "c.txt", samples(1))
    data = TarShards(tmp_path)
    assert [(image.getpixel((0, 0))[0], label) for image, label in data] == [(k, k) for k in range(5)]
    assert data[-1][1] == 4
    assert type(data[0][1]) is int
    assert data.labels.dtype == np.int64
    assert data.classes is None
    assert data.path(2) == f"{tmp_path}/b.tar/0002.png"
    for index in (5, -6):
        with pytest.raises(IndexError):
            data[index]


def test_shards_are_a_folder_one_or_several(tmp_path):
    """One archive, or several in an order of one's own."""
    one = write_tar(tmp_path / "1.tar", samples(1))
    two = write_tar(tmp_path / "2.tar", samples(1, first=1))
    assert TarShards(one).labels.tolist() == [0]
    assert TarShards([two, str(one)]).labels.tolist() == [1, 0]


def test_labels_are_numbers_or_the_names_of_classes(tmp_path):
    """By suffix, JSON field or folder; what is not all numbers names classes, sorted over all shards."""
    write_tar(tmp_path / "a.tar", samples(3))
    write_tar(
        tmp_path / "b.tar",
        [("x/b/0.png", png()), ("x/b/0.txt", b" zebra\n"), ("x/a/1.png", png()), ("x/a/1.txt", b"7")],
    )
    assert TarShards(tmp_path / "a.tar", label="json:label").labels.tolist() == [0, 1, 2]
    named = TarShards(tmp_path / "a.tar", label="json:name")
    assert (named.classes, named.labels.tolist()) == (["class 0", "class 1"], [0, 1, 0])
    texts = TarShards(tmp_path / "b.tar", label="txt")
    assert (texts.classes, texts.labels.tolist()) == (["7", "zebra"], [1, 0])
    folders = TarShards(tmp_path / "b.tar", label="folder")
    assert (folders.classes, folders.labels.tolist()) == (["a", "b"], [1, 0])


def test_the_names_of_classes_are_those_of_all_shards(tmp_path):
    """A class has the same label in every shard, and numbers are names where others are no numbers."""
    write_tar(tmp_path / "a.tar", [("0.png", png()), ("0.cls", b"cat")])
    write_tar(tmp_path / "b.tar", [("1.png", png()), ("1.cls", b"-3"), ("2.png", png()), ("2.cls", b"cat")])
    data = TarShards(tmp_path)
    assert (data.classes, data.labels.tolist()) == (["-3", "cat"], [1, 0, 1])
    assert TarShards(write_tar(tmp_path / "c.tar", [("1.png", png()), ("1.cls", b"-3")])).labels.tolist() == [-3]


def test_other_members_are_no_samples(tmp_path):
    """Folders, hidden files, also between the members of a sample, and files without suffix belong to no sample."""
    files = [
        ("./", None), ("./._0.png", b"?"), ("./0.PNG", png(7)), ("./._0.cls", b"?"), ("./0.seg.png", png(9)),
        ("./0.cls", b"5"), ("README", b"?"), (".git/x", b"?"), ("a/.x.png", b"?"),
    ]  # fmt: skip
    data = TarShards(write_tar(tmp_path / "a.tar", files))
    assert [(image.getpixel((0, 0))[0], label) for image, label in data] == [(7, 5)]


IMAGE = ("0.png", png())


@pytest.mark.parametrize(
    ("files", "label", "words"),
    [
        ([("0.txt", b"1"), ("0.cls", b"1")], "cls", ["'0'", "no image", ".jpg", "it has .txt, .cls"]),
        ([IMAGE], "cls", ["'0'", "has no .cls", "it has .png"]),
        ([IMAGE, ("0.cls", b" \n")], "cls", ["'0'", "empty label"]),
        ([IMAGE, ("0.cls", b"\xff")], "cls", ["'0'", "decode"]),
        ([IMAGE, ("0.cls", b"1" * ((1 << 20) + 1))], "cls", ["'0'", "no label"]),
        ([IMAGE, ("0.json", b"{}")], "json:label", ["'0'", "None", "'label'"]),
        ([IMAGE, ("0.json", b'{"label": 1.5}')], "json:label", ["'0'", "1.5", "whole number"]),
        ([IMAGE, ("0.json", b'{"label": true}')], "json:label", ["'0'", "True"]),
        ([IMAGE, ("0.json", b"[1]")], "json:label", ["'0'", "JSON"]),
        ([IMAGE, ("0.json", b"\xff")], "json:label", ["'0'", "JSON"]),
        ([IMAGE], "folder", ["'0'", "empty label"]),
        ([IMAGE, IMAGE], "cls", ["'0'", "two members .png"]),
        ([], "cls", ["no sample"]),
    ],
)
def test_a_sample_without_image_or_label_is_named(tmp_path, files, label, words):
    """What cannot be a sample is a DataError with the shard, the sample, and what it has instead."""
    path = write_tar(tmp_path / "a.tar", files)
    with pytest.raises(DataError) as caught:
        TarShards(path, label=label)
    for word in (repr(str(path)), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("label", ["", "json", "json:", "cls:field", ":x"])
def test_a_label_must_say_where_it_is(tmp_path, label):
    """What names no member is a UsageError that says what does, before any shard is read."""
    with pytest.raises(UsageError, match=r"json:field"):
        TarShards(tmp_path / "nowhere", label=label)
    with pytest.raises(UsageError, match="dot"):
        TarShards(tmp_path / "nowhere", extensions=["jpg"])


def test_shards_that_are_not_there_are_named(tmp_path):
    """A missing shard, a folder in place of one, and a folder without shards are DataErrors."""
    with pytest.raises(DataError, match="nowhere"):
        TarShards([tmp_path / "nowhere.tar"])
    with pytest.raises(DataError, match="directory"):
        TarShards([tmp_path])
    with pytest.raises(DataError, match=r"looked for \*\.tar"):
        TarShards(tmp_path)


def test_an_unreadable_image_names_shard_and_member(tmp_path):
    """An image that is none, or behind the end of a shard that was cut since, is a SampleError naming both."""
    path = write_tar(tmp_path / "a.tar", [("0.png", b"none"), ("0.cls", b"1"), ("1.png", png()), ("1.cls", b"1")])
    data = TarShards(path)
    with pytest.raises(SampleError, match=r"a\.tar/0\.png"):
        data[0]
    os.truncate(path, BLOCK * 5 + 3)
    with pytest.raises(SampleError, match=r"cut off inside member '1\.png'") as caught:
        data[1]
    assert caught.value.path == f"{path}/1.png"
    assert caught.value.sample_id == 1


# --- in place of an image folder -------------------------------------------------------------------------------------


def shards_of(folder, where):
    """The files of an ImageFolder in two shards."""
    half = len(folder) // 2
    for name, ids in (("0.tar", range(half)), ("1.tar", range(half, len(folder)))):
        files = [(os.path.relpath(folder.path(id_), folder.root), folder.encoded(id_)) for id_ in ids]
        write_tar(where / name, files)
    return TarShards(where, label="folder")


def test_shards_make_the_batches_of_their_folder(photos, tmp_path):
    """The same images as files and in shards give the same bytes, augmentation included."""
    folder = ImageFolder(photos)
    shards = shards_of(folder, tmp_path)
    assert shards.classes == folder.classes
    ours, theirs = (Preparation(data, recipes.imagenet_train(32)) for data in (shards, folder))
    assert ours.layout == theirs.layout
    for left, right in zip(batches(ours), batches(theirs), strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_bad_image_in_a_batch_is_named(photos, tmp_path):
    """What cannot be decoded in a worker is a SampleError with shard and member."""
    data = TarShards(write_tar(tmp_path / "a.tar", [("0.jpg", b"none"), ("0.cls", b"1")]))
    with pytest.raises(SampleError, match=r"a\.tar/0\.jpg"):
        batches(Preparation(data, recipes.imagenet_eval(32)))


def test_a_recipe_is_needed():
    """As for every set of images of many sizes."""
    with pytest.raises(UsageError, match="a recipe"):
        Preparation(object.__new__(TarShards))


@pytest.mark.real
def test_both_sides_read_shards(small_images, tmp_path, nothing_left):
    """Workers and the emulated CSD, which opens the shards by their description, make the whole epoch."""
    shards = shards_of(ImageFolder(small_images), tmp_path)
    devices = [ddlp.CpuPool(workers=1), ddlp.EmulatedCsd(slowdown=1)]
    with ddlp.Loader(
        shards, recipes.imagenet_train(32), batch_size=4, devices=devices, policy=ddlp.MTE(split=0.5)
    ) as loader:
        seen = [(loader.info.sample_ids, labels.tolist(), loader.info.device) for _, labels in loader]
    assert sorted(id_ for ids, _, _ in seen for id_ in ids) == list(range(60))
    assert all(shards.labels[list(ids)].tolist() == labels for ids, labels, _ in seen)
    assert {device for *_, device in seen} == {"cpu0", "csd0"}


def test_the_index_is_packed_and_pickles_out_of_band(tmp_path):
    """Names, places and labels lie in arrays that travel as buffers; the pickle itself stays small."""
    data = TarShards(write_tar(tmp_path / "a.tar", samples(300)))
    buffers = []
    pickled = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(pickled) < 1500
    assert sum(memoryview(buffer).nbytes for buffer in buffers) < 300 * (8 + 8 + 8 + 8 + 10) + 100
    again = pickle.loads(pickled, buffers=buffers)
    assert again.fingerprint == data.fingerprint
    assert again[299][1] == 299


def test_a_description_opens_the_same_shards(tmp_path):
    """Through JSON and back: the same samples, labels and fingerprint."""
    write_tar(tmp_path / "a.tar", samples())
    data = TarShards(tmp_path, label="json:name", extensions=[".PNG"], keep_index=False)
    again = open_source(json.loads(json.dumps(data.describe())))
    assert type(again) is TarShards
    assert again.fingerprint == data.fingerprint
    assert again.describe() == data.describe()


def test_fingerprints_agree_where_the_indices_do(tmp_path):
    """Copies elsewhere agree; another name, size, label or class does not."""

    def fingerprint(place, files):
        (tmp_path / place).mkdir()
        return TarShards(write_tar(tmp_path / place / "a.tar", files)).fingerprint

    files = [("0.png", png()), ("0.cls", b"1")]
    assert fingerprint("here", files) == fingerprint("there", files)
    changed = [
        [("1.png", png()), ("1.cls", b"1")],
        [("0.png", png() + b"x"), ("0.cls", b"1")],
        [("0.png", png()), ("0.cls", b"2")],
        [("0.png", png()), ("0.cls", b"cat")],
        [("0.png", png()), ("0.cls", b"dog")],
    ]
    assert len({fingerprint(str(k), files) for k, files in enumerate([files, *changed])}) == 6


def test_repr_says_what_it_is(tmp_path):
    """One line: the first shard, how many images, shards and classes."""
    path = write_tar(tmp_path / "a.tar", samples())
    assert repr(TarShards(path)) == f"TarShards({str(path)!r}, 3 images in 1 shards)"
    assert repr(TarShards(path, label="json:name")).endswith("1 shards, 2 classes)")
