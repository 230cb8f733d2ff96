"""The operations that choose pixels.

Each works on the numbers of one image's `View`, before any pixel is touched; those that only move pixels also work on
the `Windows` of a whole batch of arrays at once, and both ways give the same bytes. Their randomness is handed in as
uniform numbers in [0, 1), so that they are pure functions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from msgspec.structs import force_setattr

from ddlp.data.operation import Form, Operation, Uniforms, fix_floats, fix_size, is_int, is_number, is_size
from ddlp.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.data.decode import View
    from ddlp.data.windows import Windows

Size: TypeAlias = int | tuple[int, int]  # one side of a square, or (height, width)


class Geometry(Operation, frozen=True):
    """Chooses which pixels are wanted."""

    STAGE: ClassVar[int] = 1

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        """The choice for one image. Raises DataError, naming the shapes, where the image is too small."""
        raise NotImplementedError


class Rearrangement(Geometry, frozen=True):
    """Moves pixels without changing them, so that it works on whole batches of any dtype."""

    def choose(self, windows: Windows, uniforms: Uniforms) -> None:
        """`view`, for every sample of a batch at once."""
        raise NotImplementedError


class RandomResizedCrop(Geometry, frozen=True):
    """Crop a random part, `scale` of the area and of a `ratio` (width / height), and resize it to `size`.

    torchvision's algorithm: ten tries, then the largest central part whose ratio is allowed.
    """

    DRAWS: ClassVar[int] = 22  # area and ratio of ten tries, and the place of the one that fits

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        fix_size(self)
        fix_floats(self, "scale", self.scale, 2)
        fix_floats(self, "ratio", self.ratio, 2)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UsageError(f"RandomResizedCrop: scale must be a rising part of (0, 1]: {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UsageError(f"RandomResizedCrop: ratio must be positive and rising: {self.ratio}")

    def output(self, form: Form) -> Form:
        return _resized_form(self, form, *_pair(self.size))

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        return view.cropped(*self.part(*view.shape, uniforms)).resized(*_pair(self.size))

    def part(self, height: int, width: int, uniforms: Sequence[float]) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the part of an image, of 22 uniform numbers."""
        low, high = (math.log(bound) for bound in self.ratio)
        for turn in range(0, 20, 2):
            area = height * width * _between(*self.scale, uniforms[turn])
            ratio = math.exp(_between(low, high, uniforms[turn + 1]))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return _place(height - h, uniforms[20]), _place(width - w, uniforms[21]), h, w
        return self._central(height, width)

    def _central(self, height: int, width: int) -> tuple[int, int, int, int]:
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        w = min(width, round(height * ratio))
        h = min(height, round(width / ratio))
        return (height - h) // 2, (width - w) // 2, h, w


class Resize(Geometry, frozen=True):
    """Resize the shorter side to `size`, keeping the ratio as torchvision does; or both sides to (height, width)."""

    size: Size

    def __post_init__(self) -> None:
        fix_size(self)

    def output(self, form: Form) -> Form:
        known = form.height is not None and form.width is not None
        if isinstance(self.size, tuple) or known:
            return _resized_form(self, form, *self._sides(form.height or 1, form.width or 1))
        return _resized_form(self, form, None, None)

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        return view.resized(*self._sides(*view.shape))

    def _sides(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        long = int(self.size * max(height, width) / min(height, width))
        return (self.size, long) if height <= width else (long, self.size)


class Shrink(Geometry, frozen=True):
    """Resize the longer side to `longest_side` pixels, keeping the ratio; an image that is no larger stays as it is."""

    longest_side: int

    def __post_init__(self) -> None:
        if not is_size(self.longest_side):
            raise UsageError(f"Shrink: longest_side must be a number of pixels, 1 or more: {self.longest_side!r}")

    def output(self, form: Form) -> Form:
        if form.height is None or form.width is None:
            return _resized_form(self, form, None, None)
        return _resized_form(self, form, *self._sides(form.height, form.width))

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        sides = self._sides(*view.shape)
        return view if sides == view.shape else view.resized(*sides)

    def _sides(self, height: int, width: int) -> tuple[int, int]:
        scale = min(1.0, self.longest_side / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale))


class CenterCrop(Rearrangement, frozen=True):
    """The central part of `size`."""

    size: Size

    def __post_init__(self) -> None:
        fix_size(self)

    def output(self, form: Form) -> Form:
        return _cropped_form(self, form, *_pair(self.size), 0)

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        return view.cropped(*self._place(*view.shape), *_pair(self.size))

    def choose(self, windows: Windows, uniforms: Uniforms) -> None:
        windows.crop(*self._place(windows.height, windows.width), *_pair(self.size))

    def _place(self, height: int, width: int) -> tuple[int, int]:
        room = _room(self, (height, width), _pair(self.size), 0)
        return round(room[0] / 2), round(room[1] / 2)


class RandomCrop(Rearrangement, frozen=True):
    """A part of `size` at a random place of the image with `padding` zero pixels on each side."""

    DRAWS: ClassVar[int] = 2

    size: Size
    padding: int = 0

    def __post_init__(self) -> None:
        fix_size(self)
        if not is_int(self.padding) or self.padding < 0:
            raise UsageError(f"RandomCrop: padding must be a number of pixels, 0 or more: {self.padding!r}")

    def output(self, form: Form) -> Form:
        return _cropped_form(self, form, *_pair(self.size), self.padding)

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        room = _room(self, view.shape, _pair(self.size), self.padding)
        top, left = (_place(room[i], uniforms[i]) - self.padding for i in (0, 1))
        return view.cropped(top, left, *_pair(self.size))

    def choose(self, windows: Windows, uniforms: Uniforms) -> None:
        room = _room(self, (windows.height, windows.width), _pair(self.size), self.padding)
        top, left = (np.floor(uniforms[:, i] * (room[i] + 1)).astype(np.int32) - self.padding for i in (0, 1))
        windows.crop(top, left, *_pair(self.size))


class RandomHorizontalFlip(Rearrangement, frozen=True):
    """Mirror left and right with probability `p`."""

    DRAWS: ClassVar[int] = 1

    p: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.p) or not 0 <= self.p <= 1:
            raise UsageError(f"RandomHorizontalFlip: p must be a probability: {self.p!r}")
        force_setattr(self, "p", float(self.p))

    def view(self, view: View, uniforms: Sequence[float]) -> View:
        return view.mirrored() if uniforms[0] < self.p else view

    def choose(self, windows: Windows, uniforms: Uniforms) -> None:
        windows.mirror(uniforms[:, 0] < self.p)


def _between(low: float, high: float, uniform: float) -> float:
    return low + (high - low) * uniform


def _place(room: int, uniform: float) -> int:
    """One of 0..room, each with the same probability."""
    return int(uniform * (room + 1))


def _room(op: Operation, sides: Sequence[int], size: tuple[int, int], padding: int) -> tuple[int, int]:
    """By how many pixels (height, width) an image is larger than the crop."""
    rows, columns = (sides[i] + 2 * padding - size[i] for i in (0, 1))
    if rows < 0 or columns < 0:
        raise DataError(f"{op} does not fit an image of height {sides[0]} and width {sides[1]}")
    return rows, columns


def _cropped_form(op: Operation, form: Form, height: int, width: int, padding: int) -> Form:
    for side, wanted in ((form.height, height), (form.width, width)):
        if side is not None and side + 2 * padding < wanted:
            raise UsageError(f"{op} does not fit {form}")
    return Form(height, width, form.channels, form.dtype)


def _resized_form(op: Operation, form: Form, height: int | None, width: int | None) -> Form:
    if form.dtype != "uint8":
        raise UsageError(f"{op} works on uint8 images, not on {form}")
    return Form(height, width, form.channels, form.dtype)


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
