"""Pixels of image files, bit for bit against a plain reading of the definition with Pillow and torch."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from ddlp.data import recipes
from ddlp.data.decode import Crop, Mirror, Resample, View, kernels, pixels_of
from ddlp.data.maker import Preparation
from ddlp.data.ops import CenterCrop, Decode, RandomCrop, RandomHorizontalFlip, Resize
from ddlp.data.recipe import Recipe
from ddlp.data.sampling import Plan, draws
from ddlp.data.sources import ImageFolder

SEED = 11


def made(folder, recipe, epoch=0, batch_size=7):
    """Every batch of an epoch, put back into the order of the ids: (images, labels)."""
    preparation = Preparation(ImageFolder(folder), recipe)
    maker = preparation.maker()
    plan = Plan(preparation.samples, batch_size, drop_last=False, shuffle=True, seed=SEED, epoch=epoch)
    maker.begin(plan)
    whole = [np.empty((plan.samples, *field.shape), field.dtype) for field in preparation.layout.fields]
    for index in range(len(plan)):
        rows = plan.rows(index)
        out = [np.full((rows, *field.shape), 99, field.dtype) for field in preparation.layout.fields]
        maker.make(index, 0, rows, out, lambda: None)
        for target, array in zip(whole, out, strict=True):
            target[plan.ids(index)] = array
    return whole


def to_tensor(image):
    """torchvision's ToTensor and Normalize."""
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return x.sub(mean).div(std).numpy()


def eval_reference(path, size, resize):
    image = Image.open(path).convert("RGB")
    width, height = image.size
    if width < height:
        image = image.resize((resize, int(resize * height / width)), Image.Resampling.BILINEAR)
    else:
        image = image.resize((int(resize * width / height), resize), Image.Resampling.BILINEAR)
    width, height = image.size
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    return to_tensor(image.crop((left, top, left + size, top + size)))


def train_box(width, height, u):
    """torchvision's RandomResizedCrop.get_params, fed with our numbers."""
    for k in range(10):
        area = width * height * (0.08 + (1.0 - 0.08) * u[2 * k])
        low, high = math.log(3 / 4), math.log(4 / 3)
        aspect = math.exp(low + (high - low) * u[2 * k + 1])
        w, h = int(round(math.sqrt(area * aspect))), int(round(math.sqrt(area / aspect)))  # noqa: RUF046
        if 0 < w <= width and 0 < h <= height:
            top, left = int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1))
            return left, top, left + w, top + h
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def train_reference(path, id_, epoch, size):
    image = Image.open(path).convert("RGB")
    ids = np.array([id_])
    box = train_box(*image.size, draws(SEED, epoch, ids, 1, 22)[0].tolist())
    image = image.crop(box).resize((size, size), Image.Resampling.BILINEAR)
    if draws(SEED, epoch, ids, 2, 1)[0, 0] < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_tensor(image)


def test_imagenet_eval_gives_the_bits_of_pillow_and_torch(photos):
    """imagenet_eval: every file, every bit, and the labels of the folders."""
    folder = ImageFolder(photos)
    images, labels = made(photos, recipes.imagenet_eval(224, 256))
    assert images.dtype == np.float32
    np.testing.assert_array_equal(labels, folder.labels)
    for id_, image in enumerate(images):
        np.testing.assert_array_equal(image, eval_reference(folder.path(id_), 224, 256), err_msg=folder.path(id_))


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_imagenet_train_gives_the_bits_of_pillow_and_torch(photos, epoch):
    """imagenet_train: every file, every bit, with the draws of its sample, epoch and operation."""
    folder = ImageFolder(photos)
    images, labels = made(photos, recipes.imagenet_train(96), epoch)
    np.testing.assert_array_equal(labels, folder.labels)
    for id_, image in enumerate(images):
        expected = train_reference(folder.path(id_), id_, epoch, 96)
        np.testing.assert_array_equal(image, expected, err_msg=folder.path(id_))


def test_a_sample_is_the_same_in_every_batch(photos):
    """The bytes of a sample do not depend on the batch, its size or the place in it."""
    recipe = recipes.imagenet_train(64)
    for small, large in zip(made(photos, recipe, batch_size=1), made(photos, recipe, batch_size=16), strict=True):
        np.testing.assert_array_equal(small, large)


def test_epochs_differ(photos):
    """Another epoch cuts other parts out of the same files."""
    one, other = (made(photos, recipes.imagenet_train(64), epoch)[0] for epoch in (0, 1))
    photo = ImageFolder(photos).labels < 2  # of extreme shapes only the centre fits
    assert all((a != b).any() for a, b in zip(one[photo], other[photo], strict=True))


def test_without_normalize_pixels_stay_uint8(photos):
    """A recipe without Normalize gives the bytes of the resized image, channels first."""
    folder = ImageFolder(photos)
    images, _ = made(photos, Recipe([Decode(), Resize((50, 40))]))
    assert images.dtype == np.uint8
    for id_, image in enumerate(images):
        expected = Image.open(folder.path(id_)).convert("RGB").resize((40, 50), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(image, np.asarray(expected).transpose(2, 0, 1))


def test_grey_recipes_have_one_channel(photos):
    """Decode(mode="L") converts every file to one channel."""
    folder = ImageFolder(photos)
    images, _ = made(photos, Recipe([Decode(mode="L"), Resize((24, 24))]))
    for id_, image in enumerate(images):
        expected = Image.open(folder.path(id_)).convert("L").resize((24, 24), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(image, np.asarray(expected)[None])


def test_padding_is_zero_and_moves_are_done_in_order():
    """A crop over the edges takes in zeros, not what an earlier crop cut off, and a later mirror moves them too."""
    pixels = np.random.default_rng(0).integers(1, 256, (20, 30, 3), dtype=np.uint8)
    view = View(20, 30).cropped(5, 5, 10, 10).cropped(-2, -3, 14, 14).mirrored().resized(14, 14).cropped(0, 0, 4, 14)
    assert view.moves == (Crop(5, 5, 10, 10), Crop(-3, -2, 14, 14), Mirror(), Resample(14, 14), Crop(0, 0, 14, 4))
    padded = np.zeros((14, 14, 3), np.uint8)
    padded[2:12, 3:13] = pixels[5:15, 5:15]
    np.testing.assert_array_equal(pixels_of(Image.fromarray(pixels), view), padded[:4, ::-1])


def test_a_view_without_change_has_no_moves():
    """Cropping to the whole image costs nothing."""
    assert View(20, 30).cropped(0, 0, 20, 30) == View(20, 30)


def test_moves_of_a_recipe_follow_each_other():
    """A recipe may crop, resize and flip in any order and number; each works on what the one before gave."""
    view = View(100, 200)
    for op, uniforms in (
        (CenterCrop(80), []),
        (RandomHorizontalFlip(1.0), [0.3]),
        (Resize(40), []),
        (RandomCrop(30), [0.0, 0.999]),
        (Resize((10, 20)), []),
    ):
        view = op.view(view, uniforms)
    assert view == View(
        10, 20, (Crop(60, 10, 80, 80), Mirror(), Resample(40, 40), Crop(10, 0, 30, 30), Resample(20, 10))
    )


def test_kernels_name_the_libraries():
    """The versions that decide about the bits are known."""
    names = kernels()
    assert set(names) == {"pillow", "libjpeg_turbo", "numpy"}
    assert all(names.values())
