"""Preparation and Maker: every way to make a batch, what is refused beforehand, and what a bad sample says."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image

from ddlp.data import recipes
from ddlp.data.maker import Preparation
from ddlp.data.ops import CenterCrop, Decode, Map, Normalize, RandomCrop, RandomHorizontalFlip, Resize
from ddlp.data.python import unpack
from ddlp.data.recipe import Recipe
from ddlp.data.sampling import Plan, listed
from ddlp.data.sources import CIFAR10, ArrayDataset, ImageFolder, write_cifar10
from ddlp.errors import DataError, SampleError, UsageError
from ddlp.types import Field, Layout


def idle():
    """A check that finds nothing."""


def plan_of(preparation, batch_size=4, epoch=0):
    return Plan(preparation.samples, batch_size, drop_last=False, shuffle=True, seed=5, epoch=epoch)


def rebuilt(preparation):
    """The maker as a worker gets it: through a pickle."""
    return pickle.loads(pickle.dumps(preparation, protocol=5)).maker()


def batches(preparation, plan=None, lo=0, hi=None):
    """All batches of fixed form, or the same rows of each."""
    plan = plan or plan_of(preparation)
    maker = rebuilt(preparation)
    maker.begin(plan)
    made = []
    for index in range(len(plan)):
        end = plan.rows(index) if hi is None else hi
        out = [np.full((end - lo, *field.shape), 99, field.dtype) for field in preparation.layout.fields]
        maker.make(index, lo, end, out, idle)
        made.append(out)
    return made


def collected(preparation, plan=None):
    """All batches of free form, unpacked."""
    plan = plan or plan_of(preparation)
    maker = rebuilt(preparation)
    maker.begin(plan)
    made = []
    for index in range(len(plan)):
        arrays, skeleton = maker.collect(index, 0, plan.rows(index), idle)
        made.append(unpack(skeleton, [torch.from_numpy(array) for array in arrays]))
    return made


class Pairs:
    """A PyTorch-style data set of (picture, label, weight), as pictures or arrays, with randomness of its own."""

    def __init__(self, n=10, pictures=True, size=(40, 36)):
        self.pixels = np.random.default_rng(1).integers(0, 256, (n, *size, 3), dtype=np.uint8)
        self.pictures = pictures

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        image = self.pixels[index]
        return Image.fromarray(image) if self.pictures else image, index % 3, np.float32(random.random())


class Numbers:
    """A data set whose samples draw from every global generator."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"id": index, "noise": (random.random(), np.random.rand(), torch.rand(2))}


class Broken:
    """A data set whose sample 5 raises."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 5:
            raise self.error
        return Image.new("RGB", (8, 8)), index


def brighter(pixels):
    pixels += 1  # the array is the function's own
    return pixels


def as_float(pixels):
    return pixels[:2, :3].astype(np.float64) / 2


def noisy(pixels):
    return pixels + np.random.randint(0, 9, pixels.shape).astype(np.uint8)


def wrong_shape(pixels):
    return pixels[1:]


def ids_and_shapes(samples):
    return np.array([label for _, label, _ in samples]), [image.size for image, _, _ in samples]


def fails(samples):
    raise RuntimeError("no luck")


# --- ways to make a batch --------------------------------------------------------------------------------------------


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


class _AsPictures:
    """The samples of an array data set as Pillow's images."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        return Image.fromarray(image), label


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
    """Samples (image, numbers...) of any data set go through the recipe; the other fields keep default_collate's dtypes."""
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


def test_python_batches_have_default_collate_s_form():
    """Without recipe a batch of any data set keeps its structure, with tensors for numbers."""
    batch = collected(Preparation(Numbers()))[0]
    assert batch["id"].dtype == torch.int64
    assert type(batch["noise"]) is tuple
    assert batch["noise"][2].shape == (4, 2)


def test_a_collate_fn_replaces_everything(tmp_path):
    """collate_fn gets the list of samples; what it returns comes back, numpy arrays as numpy arrays."""
    preparation = Preparation(Pairs(), collate_fn=ids_and_shapes)
    assert preparation.layout is None
    plan = plan_of(preparation)
    labels, sizes = collected(preparation, plan)[0]
    assert type(labels) is np.ndarray
    np.testing.assert_array_equal(labels, plan.ids(0) % 3)
    assert sizes == [(36, 40)] * 4
    raw = Preparation(ArrayDataset(np.arange(6)), collate_fn=list)
    assert raw.layout is None
    assert all(type(sample) is tuple for sample in collected(raw)[0])


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
    for whole, part in zip(batches(preparation)[:2], batches(preparation, lo=1, hi=3)[:2], strict=False):
        for one, other in zip(whole, part, strict=True):
            np.testing.assert_array_equal(one[1:3], other)


@pytest.mark.usefixtures("kept_generators")
def test_a_sample_s_randomness_is_its_own():
    """Python's, numpy's and torch's global generators are a function of seed, epoch and sample, not of the batch."""
    preparation = Preparation(Numbers())

    def noise(batch_size, epoch=0):
        plan = plan_of(preparation, batch_size, epoch)
        rows = {}
        for index, batch in enumerate(collected(preparation, plan)):
            for row, id_ in enumerate(plan.ids(index).tolist()):
                rows[id_] = [leaf[row].tolist() for leaf in batch["noise"]]
        return rows

    assert noise(1) == noise(3)
    assert all(noise(3)[id_] != noise(3, epoch=1)[id_] for id_ in range(7))


@pytest.fixture
def kept_generators():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_preparing_leaves_the_random_state_alone():
    """Looking at the first sample draws nothing from the caller's generators."""
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    Preparation(Pairs(), recipes.cifar_train())
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states


def test_listed_plans_may_repeat_samples():
    """A sampler may choose any ids, more than once, in batches of any size."""
    preparation = Preparation(ArrayDataset(np.arange(10)))
    made = batches(preparation, listed([[3, 3, 9], [0]], 0, 0))
    assert [out[0].tolist() for out in made] == [[3, 3, 9], [0]]


def test_worker_init_fn_runs_in_the_worker():
    """worker_init_fn is called with the worker's number when its maker is made, not before."""
    calls = []
    preparation = Preparation(ArrayDataset(np.arange(3)), worker_init_fn=calls.append)
    assert calls == []
    preparation.maker(7)
    assert calls == [7]
    assert preparation.python


# --- abandoning and failing ------------------------------------------------------------------------------------------


class Abandon(BaseException):
    """Raised by a check."""


@pytest.mark.parametrize(
    "build",
    [
        lambda: Preparation(Pairs(40), Recipe([CenterCrop(8)])),
        lambda: Preparation(ArrayDataset(np.zeros((40, 600, 600, 3), np.uint8)), Recipe([CenterCrop(8)])),
        lambda: Preparation(ArrayDataset(np.zeros((40, 600, 600)))),
        lambda: Preparation(Pairs(40), collate_fn=len),
    ],
)
@pytest.mark.parametrize("error", [Abandon("given up"), RuntimeError("given up")])
def test_check_can_abandon_a_batch(build, error):
    """What check raises leaves make and collect as it is, soon, and the maker goes on with other batches."""
    preparation = build()
    maker = preparation.maker()
    plan = plan_of(preparation, 40)
    maker.begin(plan)
    left = [3]

    def check():
        left[0] -= 1
        if left[0] == 0:
            raise error

    def make(check):
        if preparation.layout is None:
            return maker.collect(0, 0, 40, check)
        out = [np.zeros((40, *field.shape), field.dtype) for field in preparation.layout.fields]
        return maker.make(0, 0, 40, out, check)

    with pytest.raises(type(error), match="given up"):
        make(check)
    make(idle)


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


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("k"), SampleError("mine", 77, "/file"), DataError("odd")]
)
@pytest.mark.parametrize("recipe", [None, Recipe([CenterCrop(8)])])
@pytest.mark.usefixtures("kept_generators")
def test_what_a_data_set_raises_becomes_the_sample_s_error(error, recipe):
    """Any exception of user code is a SampleError with the id that was asked for, the message, and the original."""
    preparation = Preparation(Broken(error), recipe, collate_fn=None if recipe else len)
    maker = preparation.maker()
    maker.begin(plan_of(preparation, 10))
    with pytest.raises(SampleError) as caught:
        if recipe is None:
            maker.collect(0, 0, 10, idle)
        else:
            maker.make(0, 0, 10, [np.zeros((10, *f.shape), f.dtype) for f in preparation.layout.fields], idle)
    assert caught.value.sample_id == 5
    assert caught.value.__cause__ is error
    assert str(error.args[0]) in str(caught.value)
    assert caught.value.path == getattr(error, "path", None)


@pytest.mark.usefixtures("kept_generators")
def test_a_map_that_breaks_its_word_is_the_sample_s_error():
    """Another shape than declared, or an exception, is a SampleError with the id, on both paths."""
    for dataset in (ArrayDataset(Pairs().pixels), Pairs()):
        with pytest.raises(SampleError, match=r"\(39, 36, 3\).*\(40, 36, 3\) was declared"):
            batches(Preparation(dataset, Recipe([Map(wrong_shape)])))
        with pytest.raises(SampleError, match="RuntimeError: no luck"):
            batches(Preparation(dataset, Recipe([Map(fails)])))


class Drifting:
    """The second field of later samples is of another form."""

    def __init__(self, value):
        self.value = value

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Image.new("RGB", (8, 8)), self.value if index else 1


@pytest.mark.parametrize("value", [2.5, [1, 2], "a", None])
@pytest.mark.usefixtures("kept_generators")
def test_fields_that_change_their_form_are_refused(value):
    """A label of another shape or kind than the first one's is a SampleError, not a silent conversion."""
    with pytest.raises(SampleError, match="sample 0 has int64"):
        batches(Preparation(Drifting(value), Recipe([])))


@pytest.mark.usefixtures("kept_generators")
def test_what_collate_fn_raises_names_the_samples():
    """An exception in collate_fn is a DataError with the ids and the original; so is a batch that cannot be packed."""
    preparation = Preparation(Pairs(3), collate_fn=fails)
    maker = preparation.maker()
    maker.begin(plan_of(preparation, 3))
    with pytest.raises(DataError, match=r"collate_fn, for samples \[.*RuntimeError: no luck") as caught:
        maker.collect(0, 0, 3, idle)
    assert isinstance(caught.value.__cause__, RuntimeError)
    unpicklable = Preparation(Pairs(3), collate_fn=lambda samples: [lambda: 0])
    maker = unpicklable.maker()
    maker.begin(plan_of(preparation, 3))
    with pytest.raises(DataError, match=r"batch\[0\]: <function"):
        maker.collect(0, 0, 3, idle)


@pytest.mark.parametrize(
    "plan", [Plan(9, 2, False, False, 0, 0), Plan(11, 2, False, False, 0, 0), listed([[10]], 0, 0)]
)
def test_a_plan_for_other_data_is_refused(plan):
    """A plan of another number of samples, or with ids that do not exist, is a UsageError at begin."""
    with pytest.raises(UsageError, match="data set has 10"):
        Preparation(ArrayDataset(np.arange(10))).maker().begin(plan)


# --- what is refused beforehand --------------------------------------------------------------------------------------


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


# --- host and agent --------------------------------------------------------------------------------------------------


def test_an_agent_prepares_the_same(photos, tmp_path):
    """What describe says, described opens: the same samples, layout, fingerprint and bytes."""
    cases = [
        Preparation(ImageFolder(photos), recipes.imagenet_train(32)),
        Preparation(CIFAR10(write_cifar10(tmp_path, 20)), recipes.cifar_train(4)),
        Preparation(ArrayDataset(np.arange(12.0).reshape(6, 2), np.arange(6)).saved(tmp_path)),
    ]
    for host in cases:
        agent = Preparation.described(*host.describe())
        assert (agent.samples, agent.layout, agent.fingerprint) == (host.samples, host.layout, host.fingerprint)
        for one, other in zip(batches(host)[0], batches(agent)[0], strict=True):
            np.testing.assert_array_equal(one, other)
    assert len({host.fingerprint for host in cases}) == 3


def test_the_fingerprint_depends_on_data_and_recipe(photos):
    """Another recipe or another data set is another fingerprint."""
    folder = ImageFolder(photos)
    made = [Preparation(folder, recipes.imagenet_train(size)).fingerprint for size in (32, 33)]
    assert len({*made, Preparation(folder, collate_fn=len).fingerprint, Preparation(Pairs()).fingerprint}) == 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Preparation(Pairs(), recipes.cifar_train()), "Pairs cannot be described"),
        (lambda: Preparation(ArrayDataset(np.arange(3))), "saved"),
        (lambda: Preparation(ArrayDataset(np.arange(3)), collate_fn=len), "collate_fn"),
        (lambda: Preparation(ArrayDataset(np.arange(3)), worker_init_fn=print), "worker_init_fn"),
        (lambda: Preparation(ArrayDataset(np.zeros((3, 9, 9)), np.arange(3)), Recipe([Map(brighter)])), "memory|Map"),
    ],
)
def test_what_cannot_be_described_is_named(build, words):
    """Parts that exist in this process only are a UsageError that names them and what to do."""
    with pytest.raises(UsageError, match=words):
        build().describe()


@pytest.mark.parametrize(("dataset", "recipe"), [(b"", b"null"), (b"{}", b"null"), (b"\xff", b"null")])
def test_a_wrong_description_is_refused(dataset, recipe):
    """Bytes that are no description are a UsageError."""
    with pytest.raises(UsageError):
        Preparation.described(dataset, recipe)


def test_preparations_pickle_small(photos):
    """The large parts of a preparation travel out of band."""
    preparation = Preparation(ArrayDataset(np.zeros((1000, 64))), worker_init_fn=print)
    assert len(pickle.dumps(preparation, protocol=5, buffer_callback=lambda _: None)) < 1500


def test_padding_is_kept_apart_from_the_image():
    """A random crop of a padded array reads zeros there, at the positions that Pillow's path reads them."""
    images = np.full((30, 6, 6, 3), 255, np.uint8)
    preparation = Preparation(ArrayDataset(images), Recipe([RandomCrop(6, padding=3)]))
    zeros = np.concatenate([out[0] == 0 for out in batches(preparation)])
    assert 0.3 < zeros.mean() < 0.7


def test_repr_shows_data_and_recipe():
    """One line: the data set and the recipe."""
    preparation = Preparation(ArrayDataset(np.zeros((4, 9, 9), np.uint8)), Recipe([CenterCrop(3)]))
    assert repr(preparation) == "Preparation(ArrayDataset(uint8(4, 9, 9)), Recipe([CenterCrop(size=3)]))"
