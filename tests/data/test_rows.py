"""Rows of fixed form, made in every way, and what a bad sample says."""

import numpy as np
import pytest
from PIL import Image

from ddlp.data import recipes
from ddlp.data.maker import Preparation
from ddlp.data.ops import CenterCrop, Decode, Map, Normalize, RandomCrop, RandomHorizontalFlip, Resize
from ddlp.data.recipe import Recipe
from ddlp.data.sources import CIFAR10, ArrayDataset, ImageFolder, write_cifar10
from ddlp.errors import SampleError
from ddlp.types import Field, Layout
from tests.data.making import Pairs, batches, brighter, fails, noisy, plan_of, wrong_shape


def as_float(pixels):
    return pixels[:2, :3].astype(np.float64) / 2


class _AsPictures:
    """The samples of an array data set as Pillow's images."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        return Image.fromarray(image), label


class Drifting:
    """The second field of later samples is of another form."""

    def __init__(self, value):
        self.value = value

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Image.new("RGB", (8, 8)), self.value if index else 1


def test_raw_rows_are_the_rows_of_the_arrays(tmp_path):
    """Without a recipe a batch holds the rows of its ids, whatever the dtype, order in memory and byte order."""
    x = np.asfortranarray(np.random.default_rng(0).random((10, 3, 2)))
    arrays = (x, np.arange(10, dtype=">i4"), np.arange(10) % 2 == 0, x.astype(np.float16)[:, 0])
    for dataset in (ArrayDataset(*arrays), ArrayDataset(*arrays).saved(tmp_path)):
        preparation = Preparation(dataset)
        assert preparation.layout.fields[1] == Field("array1", "int32", ())
        assert not preparation.python
        plan = plan_of(preparation)
        for index, out in enumerate(batches(preparation, plan)):
            for array, rows in zip(arrays, out, strict=True):
                np.testing.assert_array_equal(rows, array[plan.ids(index)])


def test_fortran_files_are_read_too(tmp_path):
    """An .npy file in Fortran order gives the same rows."""
    x = np.asfortranarray(np.arange(24.0).reshape(4, 2, 3))
    np.save(tmp_path / "x.npy", x)
    preparation = Preparation(ArrayDataset(tmp_path / "x.npy"))
    plan = plan_of(preparation)
    np.testing.assert_array_equal(batches(preparation, plan)[0][0], x[plan.ids(0)])


def test_cifar_batches_are_what_their_samples_give(tmp_path):
    """The whole-batch path equals the operations on one image at a time through Pillow, and keeps the labels."""
    dataset = CIFAR10(write_cifar10(tmp_path, 40))
    recipe = recipes.cifar_train()
    whole = Preparation(dataset, recipe)
    single = Preparation(_AsPictures(dataset), recipe)
    assert (whole.python, single.python) == (False, True)
    for out, expected in zip(batches(whole), batches(single), strict=True):
        np.testing.assert_array_equal(out[0], expected[0])
        np.testing.assert_array_equal(out[1], expected[1])


def test_cutout_is_the_last_thing_done(tmp_path):
    """With cutout the batch is the batch without, but for zeros."""
    dataset = CIFAR10(write_cifar10(tmp_path, 40))
    for plain, cut in zip(*(batches(Preparation(dataset, recipes.cifar_train(c))) for c in (None, 8)), strict=True):
        holes = cut[0] == 0
        assert 0 < holes.mean() < 0.1
        np.testing.assert_array_equal(cut[0][~holes], plain[0][~holes])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int16"])
@pytest.mark.parametrize("shape", [(9, 12, 3), (9, 12), (12, 9, 1)])
def test_arrays_of_any_form_go_through_geometry(dtype, shape):
    """Crops and flips keep dtype and channels of any array, channels first."""
    images = np.random.default_rng(0).integers(0, 99, (10, *shape)).astype(dtype)
    preparation = Preparation(ArrayDataset(images), Recipe([RandomHorizontalFlip(1.0), CenterCrop((5, 4))]))
    channels = shape[2] if len(shape) == 3 else 1
    assert preparation.layout == Layout((Field("image", dtype, (channels, 5, 4)),))
    top, left = round((shape[0] - 5) / 2), round((shape[1] - 4) / 2)
    expected = images.reshape(10, *shape[:2], channels)[:, :, ::-1][:, top : top + 5, left : left + 4]
    plan = plan_of(preparation)
    for index, (out,) in enumerate(batches(preparation, plan)):
        np.testing.assert_array_equal(out, expected[plan.ids(index)].transpose(0, 3, 1, 2))


def test_arrays_can_be_resized():
    """A recipe that resizes works on arrays of images too, with Pillow's pixels."""
    images = np.random.default_rng(0).integers(0, 256, (5, 20, 30, 3), dtype=np.uint8)
    preparation = Preparation(ArrayDataset(images, np.arange(5)), Recipe([Resize(8), CenterCrop(8)]))
    plan = plan_of(preparation)
    out, labels = batches(preparation, plan)[0]
    np.testing.assert_array_equal(labels, plan.ids(0))
    expected = Image.fromarray(images[plan.ids(0)[0]]).resize((12, 8), Image.Resampling.BILINEAR).crop((2, 0, 10, 8))
    np.testing.assert_array_equal(out[0], np.asarray(expected).transpose(2, 0, 1))


@pytest.mark.parametrize("pictures", [True, False])
def test_recipes_work_on_any_data_set_of_images(pictures):
    """Samples (image, numbers...) of any data set go through the recipe; the others keep default_collate's dtypes."""
    recipe = Recipe([Decode("L"), Resize((6, 5)), RandomHorizontalFlip(0.0)])
    dataset = Pairs(pictures=pictures)
    preparation = Preparation(dataset, recipe)
    assert [field.dtype for field in preparation.layout.fields] == ["uint8", "int64", "float32"]
    assert preparation.python
    plan = plan_of(preparation)
    for index, (images, labels, weights) in enumerate(batches(preparation, plan)):
        ids = plan.ids(index)
        np.testing.assert_array_equal(labels, ids % 3)
        assert len(set(weights.tolist())) == len(ids)
        expected = Image.fromarray(dataset.pixels[ids[0]]).convert("L").resize((5, 6), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(images[0, 0], np.asarray(expected))


@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Map(brighter), lambda x: (x + 1).transpose(2, 0, 1)),
        (Map(as_float, shape=(2, 3, 3), dtype="float64"), lambda x: (x[:2, :3] / 2).transpose(2, 0, 1)),
    ],
)
def test_map_runs_python_on_each_sample(arrays, op, expected):
    """Map gives each sample's own writable array to the function, and takes the form that is declared."""
    pairs = Pairs(pictures=False)
    dataset = ArrayDataset(pairs.pixels.copy(), np.arange(10)) if arrays else pairs
    preparation = Preparation(dataset, Recipe([op]))
    assert preparation.python
    plan = plan_of(preparation)
    for index, out in enumerate(batches(preparation, plan)):
        for image, id_ in zip(out[0], plan.ids(index), strict=True):
            np.testing.assert_array_equal(image, expected(pairs.pixels[id_]))


def test_map_works_on_image_files(photos):
    """A function may stand between the geometry and Normalize of image files."""
    recipe = Recipe([Decode(), Resize((4, 5)), Map(brighter), Normalize((0, 0, 0), (1, 1, 1))])
    (plain, bright) = (
        np.concatenate([out[0] for out in batches(Preparation(ImageFolder(photos), one))])
        for one in (Recipe([Decode(), Resize((4, 5))]), recipe)
    )
    np.testing.assert_array_equal(bright, (plain + np.uint8(1)).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Preparation(Pairs(), recipes.cifar_train(16)),
        lambda: Preparation(ArrayDataset(Pairs().pixels, np.arange(10)), recipes.cifar_train(16)),
        lambda: Preparation(ArrayDataset(Pairs().pixels), Recipe([Map(noisy)])),
        lambda: Preparation(Pairs(), Recipe([Map(noisy)])),
    ],
)
def test_parts_of_a_batch_are_its_rows(build):
    """Rows lo..hi made alone are those rows of the whole batch, whoever makes them."""
    preparation = build()
    plan = plan_of(preparation, 5)
    for whole, part in zip(batches(preparation, plan), batches(preparation, plan, lo=1, hi=3), strict=True):
        for one, other in zip(whole, part, strict=True):
            np.testing.assert_array_equal(one[1:3], other)


def test_padding_is_kept_apart_from_the_image():
    """A random crop over the edges of a white image is black there, and white inside."""
    images = np.full((30, 6, 6, 3), 255, np.uint8)
    preparation = Preparation(ArrayDataset(images), Recipe([RandomCrop(6, padding=3)]))
    made = np.concatenate([out[0] for out in batches(preparation)])
    assert set(np.unique(made)) == {0, 255}
    assert 0.3 < (made == 0).mean() < 0.7


@pytest.mark.parametrize("content", [b"", b"text", "truncated"])
def test_a_bad_file_names_sample_and_path(tmp_path, content):
    """An unreadable or truncated image is a SampleError with id and path, and the original as its cause."""
    (tmp_path / "a").mkdir()
    for k in range(4):
        Image.effect_noise((300, 300), 50).save(tmp_path / f"a/{k}.jpg")
    path = tmp_path / "a/2.jpg"
    path.write_bytes(path.read_bytes()[:5000] if content == "truncated" else content)
    preparation = Preparation(ImageFolder(tmp_path), recipes.imagenet_train(32))
    with pytest.raises(SampleError) as caught:
        batches(preparation)
    assert (caught.value.sample_id, caught.value.path) == (2, str(path))
    assert isinstance(caught.value.__cause__, OSError)
    assert type(caught.value.__cause__).__name__ in str(caught.value)


def test_an_image_smaller_than_the_crop_names_both(tmp_path):
    """A file that is too small for the recipe is a SampleError with the operation and the size."""
    (tmp_path / "a").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "a/small.png")
    with pytest.raises(SampleError, match=r"small\.png.*CenterCrop\(size=24\).*height 20 and width 30"):
        batches(Preparation(ImageFolder(tmp_path), Recipe([Decode(), CenterCrop(24)])))


def test_a_map_that_breaks_its_word_is_the_sample_s_error():
    """Another shape than declared, or an exception, is a SampleError with the id, on both paths."""
    for dataset in (ArrayDataset(Pairs().pixels), Pairs()):
        with pytest.raises(SampleError, match=r"\(39, 36, 3\).*\(40, 36, 3\) was declared"):
            batches(Preparation(dataset, Recipe([Map(wrong_shape)])))
        with pytest.raises(SampleError, match="RuntimeError: no luck"):
            batches(Preparation(dataset, Recipe([Map(fails)])))


@pytest.mark.parametrize("value", [2.5, [1, 2], "a", None])
def test_fields_that_change_their_form_are_refused(value):
    """A label of another shape or kind than the first one's is a SampleError, not a silent conversion."""
    with pytest.raises(SampleError, match="sample 0 has int64"):
        batches(Preparation(Drifting(value), Recipe([])))
