"""make_photos: the figures that it promises, and that it is reproducible."""

import os

import numpy as np
import pytest

from ddlp.data.base import read
from ddlp.data.decode import open_image
from ddlp.data.folder import ImageFolder
from ddlp.data.synthetic import make_photos
from ddlp.errors import UsageError


def contents(root):
    folder = ImageFolder(root)
    return [read(folder.path(id_)) for id_ in range(len(folder))]


def test_files_have_imagenet_s_sizes_and_entropy(tmp_path):
    """About 0.2 megapixels, mostly 500 x 375, about 4 bits per pixel, RGB JPEG in one folder per class."""
    folder = ImageFolder(make_photos(tmp_path, classes=3, per_class=40))
    assert folder.classes == ["class_000", "class_001", "class_002"]
    assert np.bincount(folder.labels).tolist() == [40, 40, 40]
    images = [open_image(read(folder.path(id_))) for id_ in range(len(folder))]
    pixels = np.array([image.width * image.height for image in images])
    nbytes = np.array([os.path.getsize(folder.path(id_)) for id_ in range(len(folder))])
    assert {image.format for image in images} == {"JPEG"}
    assert np.median(pixels) == 500 * 375
    assert 0.15e6 < pixels.mean() < 0.25e6
    assert 3 < 8 * nbytes.sum() / pixels.sum() < 5
    assert 0.8 < np.mean([image.mode == "RGB" for image in images]) <= 1


def test_the_same_seed_gives_the_same_files(tmp_path):
    """Files depend on seed, class and number only, so a larger set begins with the smaller one."""
    small = contents(make_photos(tmp_path / "a", classes=1, per_class=2, seed=4))
    assert contents(make_photos(tmp_path / "b", classes=1, per_class=3, seed=4))[:2] == small
    assert contents(make_photos(tmp_path / "c", classes=1, per_class=2, seed=5)) != small
    assert len(set(small)) == 2


def test_progress_counts_to_the_end_and_nothing_else_is_left(tmp_path):
    """progress hears of every file, and no temporary file stays."""
    heard = []
    make_photos(tmp_path, classes=2, per_class=2, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
    names = sorted(name for _, _, files in os.walk(tmp_path) for name in files)
    assert names == ["photo_00000.jpg", "photo_00000.jpg", "photo_00001.jpg", "photo_00001.jpg"]


@pytest.mark.parametrize("counts", [(0, 1), (1, 0)])
def test_counts_must_be_positive(tmp_path, counts):
    """No class or no photo is a UsageError."""
    with pytest.raises(UsageError):
        make_photos(tmp_path, *counts)
