"""Recipes as descriptions: order, JSON, digest, repr, and the output that they declare."""

import numpy as np
import pytest

from ddlp.data import recipes
from ddlp.data.operation import Form
from ddlp.data.ops import CenterCrop, Cutout, Decode, Map, Normalize, RandomCrop, RandomHorizontalFlip, Resize
from ddlp.data.recipe import Recipe, form_of
from ddlp.data.sampling import draws
from ddlp.errors import UsageError
from ddlp.types import Field

STANDARD = [
    recipes.imagenet_train(),
    recipes.imagenet_train(160),
    recipes.imagenet_eval(),
    recipes.cifar_train(),
    recipes.cifar_train(cutout=16),
    recipes.cifar_eval(),
    Recipe([]),
    Recipe([Decode("L"), Resize((3, 4)), RandomCrop((2, 3), padding=1)]),
]
FILES = Form(None, None, 3, "uint8")
GREY = Normalize((0.5,), (0.5,))


@pytest.mark.parametrize("recipe", STANDARD)
def test_json_brings_a_recipe_back(recipe):
    """from_json(to_json) is the same recipe with the same bytes and digest."""
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe
    assert again.to_json() == recipe.to_json()
    assert again.digest == recipe.digest


def test_digests_tell_recipes_apart():
    """Different recipes have different digests, and a digest is the same on every machine and in every version."""
    assert len({recipe.digest for recipe in STANDARD}) == len(STANDARD)
    assert recipes.imagenet_train().digest == "4963d31cfe6d"
    assert recipes.cifar_train(16).digest == "9f1fa1e9e8fb"


def test_the_digest_knows_a_function_by_its_name():
    """A Map counts with the name of its function, so that another function is another recipe."""
    assert Recipe([Map(np.square)]).digest != Recipe([Map(np.sqrt)]).digest
    assert Recipe([Map(form_of)]).digest == Recipe([Map(form_of)]).digest != Recipe([]).digest


def test_python_has_no_json():
    """A recipe with Map cannot be written as JSON: a UsageError that says so."""
    with pytest.raises(UsageError, match="Python"):
        Recipe([Map(np.square)]).to_json()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        b"[1]",
        b'[{"type":"Map","function":"os.system"}]',
        b'[{"type":"Resize","size":0}]',
        b'[{"type":"Resize","size":1,"more":2}]',
        b'[{"type":"Cutout","size":1},{"type":"Decode"}]',
        b'[{"type":"Normalize","mean":[],"std":[]}]',
    ],
)
def test_json_from_outside_is_checked(data):
    """What is not the JSON of a right recipe is a UsageError: bad syntax, parameters, order, and any Python."""
    with pytest.raises(UsageError):
        Recipe.from_json(data)


@pytest.mark.parametrize(
    "ops",
    [
        [Resize(3), Decode()],
        [GREY, CenterCrop(3)],
        [GREY, GREY],
        [Decode(), Decode()],
        [Cutout(3), GREY],
        [GREY, Map(np.square)],
        [Map(np.square), Resize(3)],
    ],
)
def test_the_order_of_operations_is_checked(ops):
    """Operations out of order are a UsageError that names the order."""
    with pytest.raises(UsageError, match="Decode, geometry, Map, Normalize, Cutout"):
        Recipe(ops)


def test_what_is_no_operation_is_refused():
    """Anything else in the list is a UsageError, not an error in the first batch."""
    with pytest.raises(UsageError, match="lambda"):
        Recipe([lambda x: x])


def test_repr_is_the_code_that_builds_it():
    """The repr shows what differs from the defaults, and evaluates to the recipe."""
    recipe = Recipe([Decode(), RandomCrop(32, padding=4), RandomHorizontalFlip(), GREY, Cutout(16)])
    expected = (
        "Recipe([Decode(), RandomCrop(size=32, padding=4), RandomHorizontalFlip(),"
        " Normalize(mean=(0.5,), std=(0.5,)), Cutout(size=16)])"
    )
    assert repr(recipe) == expected
    assert eval(expected) == recipe


def test_a_recipe_is_frozen_and_a_sequence():
    """It cannot be changed, and can be looped over."""
    recipe = recipes.cifar_eval()
    with pytest.raises(AttributeError):
        recipe.operations = ()
    assert list(recipe) == list(recipe.operations)
    assert len(recipe) == 1
    assert hash(recipe) == hash(recipes.cifar_eval())


@pytest.mark.parametrize(
    ("recipe", "form", "field"),
    [
        (recipes.imagenet_train(), FILES, Field("image", "float32", (3, 224, 224))),
        (recipes.imagenet_eval(128, 160), FILES, Field("image", "float32", (3, 128, 128))),
        (recipes.cifar_train(16), form_of((40, 50, 3), "uint8"), Field("image", "float32", (3, 32, 32))),
        (recipes.cifar_eval(), form_of((10, 12, 3), "float64"), Field("image", "float32", (3, 10, 12))),
        (Recipe([CenterCrop(9)]), form_of((28, 28), "int16"), Field("image", "int16", (1, 9, 9))),
        (Recipe([Map(len, (2, 3, 4), "float16")]), form_of((9, 9, 3), "uint8"), Field("image", "float16", (4, 2, 3))),
    ],
)
def test_the_output_is_known_beforehand(recipe, form, field):
    """The field that a recipe makes of a form has its channels first."""
    assert recipe.field(form) == field


@pytest.mark.parametrize(
    ("recipe", "form", "words"),
    [
        (Recipe([Decode(), Resize(256)]), FILES, "CenterCrop"),
        (recipes.cifar_train(), form_of((16, 16, 3), "uint8"), "RandomCrop.*height 16"),
        (recipes.cifar_eval(), form_of((28, 28), "uint8"), "1 channels"),
    ],
)
def test_a_recipe_that_does_not_fit_says_why(recipe, form, words):
    """What does not fit, or leaves the size open, is a UsageError that names shapes and a way out."""
    with pytest.raises(UsageError, match=words):
        recipe.field(form)


@pytest.mark.parametrize("shape", [(10,), (), (1, 2, 3, 4)])
def test_only_images_take_recipes(shape):
    """Rows that are not (height, width[, channel]) are a UsageError that names their shape."""
    with pytest.raises(UsageError, match="height, width"):
        form_of(shape, "uint8")


def test_uniforms_belong_to_the_position_of_the_operation():
    """Operation k draws the numbers of operation k, as many as it declares."""
    ids = np.array([4, 9])
    numbers = recipes.imagenet_train().uniforms(1, 2, ids)
    assert [array.shape for array in numbers] == [(2, 0), (2, 22), (2, 1), (2, 0)]
    np.testing.assert_array_equal(numbers[1], draws(1, 2, ids, 1, 22))
    np.testing.assert_array_equal(numbers[2], draws(1, 2, ids, 2, 1))
