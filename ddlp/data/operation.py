"""What every operation of a recipe is, and the checks of their parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import msgspec
from msgspec.structs import force_setattr

from ddlp.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Images: TypeAlias = "NDArray[Any]"  # (batch, channel, height, width), whatever the strides
Uniforms: TypeAlias = "NDArray[np.float64]"  # (batch, draws)

CHANNELS = {"RGB": 3, "L": 1}  # Pillow's names of the modes that recipes work in


class Form(msgspec.Struct, frozen=True):
    """What is known of one image before it is read: its sides (None: differ from image to image), channels, dtype."""

    height: int | None
    width: int | None
    channels: int
    dtype: str

    def __str__(self) -> str:
        height, width = (side or "any" for side in (self.height, self.width))
        return f"{self.dtype} images of height {height}, width {width} and {self.channels} channels"


class Operation(msgspec.Struct, frozen=True, tag=True, repr_omit_defaults=True, forbid_unknown_fields=True):
    """One step of a recipe. STAGE orders the steps; DRAWS is how many uniform numbers it takes of each sample."""

    STAGE: ClassVar[int]
    DRAWS: ClassVar[int] = 0

    def output(self, form: Form) -> Form:
        """The form of its output. Raises UsageError, naming the shapes, where it cannot work on `form`."""
        return form


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_size(value: object) -> TypeGuard[int]:
    return is_int(value) and value > 0


def fix_size(op: Any) -> None:
    """Check `size` and turn a list into a tuple, so that equal operations have equal digests."""
    size = tuple(op.size) if isinstance(op.size, list) else op.size
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    if not all(map(is_size, sides)):
        raise UsageError(f"{type(op).__name__}: size must be pixels, one number or (height, width): {op.size!r}")
    force_setattr(op, "size", size)


def fix_floats(op: Any, name: str, values: Any, count: int | None) -> None:
    """Check a list of numbers and turn it into a tuple of floats, so that equal operations have equal digests."""
    wanted = "numbers" if count is None else f"{count} numbers"
    if not isinstance(values, (tuple, list)) or not values or not all(map(is_number, values)):
        raise UsageError(f"{type(op).__name__}: {name} must be {wanted}: {values!r}")
    if count is not None and len(values) != count:
        raise UsageError(f"{type(op).__name__}: {name} must be {wanted}: {values!r}")
    force_setattr(op, name, tuple(float(value) for value in values))
