"""Descriptions: what a host says of a data set, an agent opens."""

import json

import numpy as np
import pytest

from ddlp.data.sources import CIFAR10, ArrayDataset, ImageFolder, open_source, write_cifar10
from ddlp.errors import DataError, UsageError


@pytest.fixture
def sources(photos, tmp_path):
    return [
        ImageFolder(photos, extensions=[".JPG", ".png"]),
        CIFAR10(write_cifar10(tmp_path, 20)),
        CIFAR10(tmp_path, train=False),
        ArrayDataset(np.zeros((3, 2)), np.arange(3)).saved(tmp_path / "arrays"),
    ]


def test_a_description_opens_the_same_data(sources):
    """Through JSON and back, the opened data set has the same kind, length and fingerprint."""
    for source in sources:
        again = open_source(json.loads(json.dumps(source.describe())))
        assert type(again) is type(source)
        assert len(again) == len(source)
        assert again.fingerprint == source.fingerprint
        assert again.describe() == source.describe()


@pytest.mark.parametrize(
    "description",
    [
        None,
        [],
        {},
        {"type": "os.system"},
        {"type": "CIFAR10", "root": 3, "train": True},
        {"type": "CIFAR10", "root": "x"},
    ],
)
def test_what_is_no_description_is_refused(description):
    """Anything else is a UsageError, before any file is touched."""
    with pytest.raises(UsageError, match="description"):
        open_source(description)


def test_data_that_is_not_there_is_the_data_s_fault(tmp_path):
    """A right description of a folder that this machine has not is a DataError."""
    description = {"type": "ImageFolder", "root": str(tmp_path / "gone"), "extensions": [".jpg"], "allow_empty": False}
    with pytest.raises(DataError, match="gone"):
        open_source(description)
