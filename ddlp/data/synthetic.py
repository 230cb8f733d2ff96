"""Photo-like JPEG files, made up: for benchmarks and examples where no real image folder is at hand.

Size, entropy and sampling follow ImageNet's files (about 0.2 megapixels and 4 bits per pixel), because these decide
what decoding costs. A class has its own colours, so that training on the files learns something.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from ddlp.data.base import replacing
from ddlp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_SIZES = ((500, 375), (375, 500), (500, 333), (333, 500), (400, 300), (300, 225), (640, 480), (1024, 768))
_SHARES = (0.46, 0.13, 0.12, 0.05, 0.10, 0.06, 0.06, 0.02)
_TEXTURE = 1536  # side of the stored textures; photos take parts of them


def make_photos(
    folder: str | os.PathLike[str],
    classes: int = 10,
    per_class: int = 100,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Write `classes` folders of `per_class` JPEG files for ImageFolder and return `folder`.

    The same arguments give the same files. `progress` is called with the number of files done and the number of all.

    Raises:
        UsageError: a count is not positive.
    """
    if classes < 1 or per_class < 1:
        raise UsageError(f"classes and per_class must be positive: {classes}, {per_class}")
    textures = _textures(np.random.default_rng(seed))
    for label in range(classes):
        class_folder = os.path.join(folder, f"class_{label:03}")
        os.makedirs(class_folder, exist_ok=True)
        for number in range(per_class):
            random = np.random.default_rng((seed, label, number))
            with replacing(os.path.join(class_folder, f"photo_{number:05}.jpg")) as file:
                file.write(_jpeg(_photo(random, textures, label), random))
            if progress is not None:
                progress(label * per_class + number + 1, classes * per_class)
    return os.fspath(folder)


def _textures(random: np.random.Generator) -> list[NDArray[np.int16]]:
    """Noise fields from coarse to fine, which every photo takes parts of: computing them anew would take too long."""
    frequency = np.hypot(np.fft.fftfreq(_TEXTURE)[:, None], np.fft.rfftfreq(_TEXTURE)[None])
    frequency[0, 0] = 1
    return [_field(random, frequency**-slope) for slope in (1.6, 1.2, 0.8)]


def _field(random: np.random.Generator, spectrum: NDArray[np.float64]) -> NDArray[np.int16]:
    """Noise of standard deviation 1024 with this spectrum."""
    white = np.fft.rfft2(random.standard_normal((_TEXTURE, _TEXTURE)))
    field = np.fft.irfft2(white * spectrum, (_TEXTURE, _TEXTURE))
    rounded: NDArray[np.int16] = np.rint(field * (1024 / field.std())).astype(np.int16)
    return rounded


def _photo(random: np.random.Generator, textures: list[NDArray[np.int16]], label: int) -> Image.Image:
    width, height = _SIZES[random.choice(len(_SIZES), p=_SHARES)]
    image = np.asarray(_scene(random, width, height, label)).astype(np.int16)
    for texture, contrast in zip(textures, random.uniform((24, 12, 12), (44, 26, 24)), strict=True):
        part = _part(random, texture, width, height)
        image += (part.astype(np.int32) * int(contrast) >> 10).astype(np.int16)[:, :, None]
    image += random.integers(-4, 5, image.shape, dtype=np.int16)  # the sensor's noise, in every channel its own
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def _part(random: np.random.Generator, texture: NDArray[np.int16], width: int, height: int) -> NDArray[np.int16]:
    top, left = random.integers(0, _TEXTURE - height), random.integers(0, _TEXTURE - width)
    part = texture[top : top + height, left : left + width]
    return part[:, ::-1] if random.random() < 0.5 else part


def _scene(random: np.random.Generator, width: int, height: int, label: int) -> Image.Image:
    """A background that changes smoothly, in colours of the class, and some things with edges before it."""
    hue = np.random.default_rng(label).integers(40, 216, 3)
    corners = np.clip(hue + random.integers(-40, 41, (2, 2, 3)), 0, 255).astype(np.uint8)
    scene = Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(scene)
    for _ in range(random.integers(4, 14)):
        _thing(random, draw, width, height)
    return scene


def _thing(random: np.random.Generator, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    colour = tuple(random.integers(0, 256, 3).tolist())
    points: list[Any] = (random.random((4, 2)) * (width, height)).tolist()
    if random.random() < 0.5:
        draw.polygon([tuple(point) for point in points], fill=colour)
    else:
        (left, top), (right, bottom) = np.sort(points[:2], axis=0).tolist()
        draw.ellipse((left, top, right, bottom), fill=colour)


def _jpeg(image: Image.Image, random: np.random.Generator) -> bytes:
    """Mostly 4:2:0 in colour; one file in fifty grey, one in fifty progressive, one in ten without subsampling."""
    grey, progressive, full = random.random(3) < (0.02, 0.02, 0.1)
    file = io.BytesIO()
    (image.convert("L") if grey else image).save(
        file,
        "JPEG",
        quality=int(random.integers(85, 96)),
        subsampling="4:4:4" if full else "4:2:0",
        progressive=bool(progressive),
    )
    return file.getvalue()
