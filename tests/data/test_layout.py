"""The form of the batches: what is refused before any worker starts."""

import random

import numpy as np
import pytest
import torch

from ddlp.data import recipes
from ddlp.data.maker import Preparation
from ddlp.data.ops import Decode, Resize
from ddlp.data.recipe import Recipe
from ddlp.data.sources import ArrayDataset, ImageFolder
from ddlp.errors import SampleError, UsageError
from tests.data.making import (
    Broken,
    Pairs,
)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Preparation(iter([])), "__len__"),
        (lambda: Preparation([1], recipe=[Resize(3)]), "recipe must be a Recipe"),
        (lambda: Preparation(Pairs(), Recipe([]), collate_fn=len), "either a recipe or a collate_fn"),
        (lambda: Preparation(ArrayDataset(np.zeros((4, 16, 16, 3), np.uint8)), recipes.cifar_train()), "height 16"),
        (lambda: Preparation(ArrayDataset(np.zeros((4, 16))), recipes.cifar_eval()), r"not on \(16,\)"),
        (lambda: Preparation(ArrayDataset(np.zeros((4, 9, 9, 4), np.uint8)), Recipe([Resize(3)])), "4 channels"),
        (lambda: Preparation(ArrayDataset(np.zeros((4, 9, 9))), Recipe([Resize(3)])), "float64"),
        (lambda: Preparation(Pairs(size=(16, 99)), recipes.cifar_train()), "height 16"),
        (lambda: Preparation([1, 2], Recipe([])), "not int"),
        (lambda: Preparation([], Recipe([])), "empty"),
        (lambda: Preparation([(np.zeros((3, 3), np.uint8), "cat")], Recipe([])), "field 1"),
        (lambda: Preparation([(np.zeros((3, 3)), 1)], Recipe([])), "float64"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(build, words):
    """Arguments that make no batch are a UsageError that names them, before any worker starts."""
    with pytest.raises(UsageError, match=words):
        build()


def test_image_folders_need_a_recipe_that_decodes(photos):
    """Without recipe, without Decode, and with a size left open, an image folder is a UsageError with the way out."""
    folder = ImageFolder(photos)
    with pytest.raises(UsageError, match="imagenet_train"):
        Preparation(folder)
    with pytest.raises(UsageError, match="Decode"):
        Preparation(folder, recipes.cifar_train())
    with pytest.raises(UsageError, match="CenterCrop"):
        Preparation(folder, Recipe([Decode(), Resize(64)]))
    assert Preparation(folder, collate_fn=len).layout is None


def test_a_first_sample_that_fails_is_named():
    """The first sample shows the form; if it cannot be read that is a SampleError, not a UsageError."""

    class First(Broken):
        def __getitem__(self, index):
            return super().__getitem__(index + 5)

    with pytest.raises(SampleError, match="sample 0: ValueError: odd"):
        Preparation(First(ValueError("odd")), Recipe([]))


def test_preparing_leaves_the_random_state_alone():
    """Looking at the first sample draws nothing from the caller's generators."""
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    Preparation(Pairs(), recipes.cifar_train())
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
