"""The data sets that ddlp knows itself, and how an agent opens one that was described to it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ddlp.data.arrays import ArrayDataset, ArrayDescription
from ddlp.data.base import Source
from ddlp.data.cifar import CIFAR10, Cifar10Description, write_cifar10
from ddlp.data.folder import ImageFolder, ImageFolderDescription
from ddlp.data.shards import TarShards, TarShardsDescription
from ddlp.errors import UsageError

__all__ = ["CIFAR10", "ArrayDataset", "ImageFolder", "Source", "TarShards", "open_source", "write_cifar10"]

Description: TypeAlias = ImageFolderDescription | TarShardsDescription | Cifar10Description | ArrayDescription


def open_source(description: object) -> Source:
    """The data set of what `describe` returned, opened on this machine.

    Raises:
        UsageError: it is not a description.
        DataError: the data set cannot be read here.
    """
    try:
        known: Description = msgspec.convert(description, Description)
    except msgspec.ValidationError as error:
        raise UsageError(f"not the description of a data set: {error}") from error
    match known:
        case ImageFolderDescription(root, extensions, allow_empty, keep_listing):
            return ImageFolder(root, extensions, allow_empty, keep_listing)
        case TarShardsDescription(shards, label, extensions, keep_index):
            return TarShards(shards, label, extensions, keep_index)
        case Cifar10Description(root, train):
            return CIFAR10(root, train)
        case ArrayDescription(paths):
            return ArrayDataset(*paths)
