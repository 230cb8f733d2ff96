"""ImageFolder: torchvision's order and classes, and what odd folders do."""

import os
import pickle

import numpy as np
import pytest
from PIL import Image

from ddlp.data.folder import ImageFolder
from ddlp.errors import DataError, SampleError


def fill(root, *names):
    """Tiny PNG files of these names, whatever their suffix."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), len(name)).save(path, "PNG")
    return root


def paths(folder):
    return [os.path.relpath(folder.path(id_), folder.root) for id_ in range(len(folder))]


def torchvision_order(root, extensions):
    """What torchvision's make_dataset lists, written down from its documentation."""
    samples = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(root) if entry.is_dir())):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            samples += [
                (os.path.relpath(os.path.join(folder, file), root), label)
                for file in sorted(files)
                if file.lower().endswith(extensions)
            ]
    return samples


def test_the_order_is_torchvision_s(tmp_path):
    """Classes, folders inside them and files are sorted as torchvision sorts them, suffixes in any case."""
    fill(tmp_path, "b/2.png", "b/10.JPG", "a/x/1.png", "a/x-y/1.png", "a/x/y/1.Jpeg", "a/z.png", "B/ü.png", "a/w.txt")
    folder = ImageFolder(tmp_path)
    expected = torchvision_order(tmp_path, (".png", ".jpg", ".jpeg"))
    assert list(zip(paths(folder), folder.labels.tolist(), strict=True)) == expected
    assert len(folder) == 7
    assert folder.classes == ["B", "a", "b"]
    assert folder.class_to_idx == {"B": 0, "a": 1, "b": 2}
    assert folder.labels.dtype == np.int64


def test_a_sample_is_an_rgb_image_and_its_label(tmp_path):
    """Indexing gives (RGB image, int), from both ends, and IndexError outside."""
    folder = ImageFolder(fill(tmp_path, "a/1.png", "b/2.png"))
    image, label = folder[-1]
    assert (image.mode, image.size, label) == ("RGB", (3, 2), 1)
    assert type(label) is int
    assert [label for _, label in folder] == [0, 1]
    for index in (2, -3):
        with pytest.raises(IndexError):
            folder[index]


def test_hidden_entries_are_no_data(tmp_path):
    """Hidden classes, folders and files are not there, and files beside the classes are none."""
    fill(tmp_path, "a/1.png", ".git/1.png", "a/.thumbs/1.png", "a/._1.png", "cover.png")
    folder = ImageFolder(tmp_path)
    assert paths(folder) == ["a/1.png"]
    assert folder.classes == ["a"]


def test_links_are_followed_and_loops_end(tmp_path):
    """Links to files and folders count; a link to a parent, direct or mutual, ends; a dangling one is ignored."""
    root, other = fill(tmp_path / "root", "a/1.png", "b/1.png"), fill(tmp_path / "other", "x/1.png")
    (root / "c").symlink_to(other / "x")
    (root / "a/2.png").symlink_to(root / "b/1.png")
    (root / "a/more").symlink_to(other)
    (root / "a/self").symlink_to(root / "a")
    (root / "b/up").symlink_to(root)
    (other / "x/back").symlink_to(other)
    (root / "b/gone").symlink_to(tmp_path / "nowhere")
    listed = paths(ImageFolder(root))
    assert listed[:3] == ["a/1.png", "a/2.png", "a/more/x/1.png"]
    assert "c/1.png" in listed
    assert len(listed) < 30


def test_names_of_any_bytes_are_kept(tmp_path):
    """Names that are not UTF-8 find their files again."""
    fill(tmp_path, "a/1.png")
    os.rename(os.fsencode(tmp_path / "a/1.png"), os.fsencode(tmp_path / "a") + b"/\xff\xfe.png")
    folder = ImageFolder(tmp_path)
    assert os.path.exists(folder.path(0))
    assert folder.fingerprint


def test_an_empty_folder_says_what_was_seen(tmp_path):
    """No image at all is a DataError with the folder, the patterns, and what lies there instead."""
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats/readme.txt").write_text("no cats")
    with pytest.raises(DataError) as caught:
        ImageFolder(tmp_path, extensions=(".jpg", ".png"), allow_empty=True)
    for words in (repr(str(tmp_path)), "*.jpg, *.png", "1 class folders", "1 other files", "readme.txt"):
        assert words in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    """A folder that does not exist, or is a file, is a DataError with its name."""
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        with pytest.raises(DataError, match=name):
            ImageFolder(tmp_path / name)


def test_a_class_without_images_must_be_allowed(tmp_path):
    """A class folder without images is a DataError that names it; with allow_empty it keeps its index."""
    fill(tmp_path, "a/1.png", "c/1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"\['b'\].*allow_empty"):
        ImageFolder(tmp_path)
    folder = ImageFolder(tmp_path, allow_empty=True)
    assert folder.classes == ["a", "b", "c"]
    assert folder.labels.tolist() == [0, 2]


@pytest.mark.parametrize("content", [b"", b"not an image", "truncated"])
def test_an_unreadable_image_names_sample_and_file(tmp_path, content):
    """A file that is no image, or half of one, is a SampleError with id and path."""
    fill(tmp_path, "a/1.png", "a/2.png")
    if content == "truncated":
        Image.effect_noise((64, 64), 50).save(tmp_path / "a/2.png")
        content = (tmp_path / "a/2.png").read_bytes()[:2000]
    (tmp_path / "a/2.png").write_bytes(content)
    folder = ImageFolder(tmp_path)
    folder[0]
    with pytest.raises(SampleError) as caught:
        folder[1]
    assert caught.value.sample_id == 1
    assert caught.value.path == str(tmp_path / "a/2.png")
    assert caught.value.__cause__ is not None


def test_fingerprints_agree_where_the_listings_do(tmp_path):
    """Copies at other places have the same fingerprint; another name, file or class has another one."""
    names = ("a/1.png", "a/2.png", "b/1.png")
    one, copy = (ImageFolder(fill(tmp_path / place, *names)) for place in ("here", "there"))
    assert one.fingerprint == copy.fingerprint
    changes = [("a/1.png", "a/3.png", "b/1.png"), ("a/1.png", "b/2.png", "b/1.png"), ("a/1.png", "a/2.png", "c/1.png")]
    others = {ImageFolder(fill(tmp_path / str(k), *change)).fingerprint for k, change in enumerate(changes)}
    assert len({one.fingerprint} | others) == 4


def test_the_index_is_packed_and_pickles_out_of_band(tmp_path):
    """The listing lies in three arrays that travel as buffers; the pickle itself stays small."""
    folder = ImageFolder(fill(tmp_path, *(f"a/{k:06}.png" for k in range(300))))
    buffers = []
    data = pickle.dumps(folder, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1500
    assert sum(memoryview(buffer).nbytes for buffer in buffers) < 300 * (10 + 8 + 8) + 100
    again = pickle.loads(data, buffers=buffers)
    assert paths(again) == paths(folder)
    assert again.fingerprint == folder.fingerprint
    assert again[299][1] == 0


def test_repr_says_what_it_is(tmp_path):
    """One line: the folder, its images and classes."""
    folder = ImageFolder(fill(tmp_path, "a/1.png", "b/1.png"))
    assert repr(folder) == f"ImageFolder({str(tmp_path)!r}, 2 images, 2 classes)"
