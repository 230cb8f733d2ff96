"""A recipe: the frozen, printable, serialisable list of operations that turns a sample's image into training input."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from ddlp.data.geometry import Geometry, Rearrangement
from ddlp.data.operation import CHANNELS, Form, Operation
from ddlp.data.ops import Decode, Map, Normalize, Standard
from ddlp.data.sampling import draws
from ddlp.errors import UsageError
from ddlp.types import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ddlp.data.operation import Uniforms

T = TypeVar("T", bound=Operation)

_decoder = msgspec.json.Decoder(list[Standard])


class Recipe(msgspec.Struct, frozen=True):
    """Operations in the order Decode, geometry, Map, Normalize, Cutout; each of them may be missing.

    The output is float32 with Normalize and the dtype of the pixels without, (channel, height, width) in both cases.
    The random numbers of an operation belong to its position in the list.

    Raises:
        UsageError: something is not an operation, or stands at the wrong place.
    """

    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        force_setattr(self, "operations", tuple(self.operations))
        for op in self.operations:
            if not isinstance(op, Operation):
                raise UsageError(f"a recipe is a list of operations such as Resize(256): {op!r}")
        for before, op in zip(self.operations, self.operations[1:], strict=False):
            if op.STAGE < before.STAGE or (op.STAGE == before.STAGE and isinstance(op, (Decode, Normalize))):
                order = "Decode, geometry, Map, Normalize, Cutout, with one Decode and one Normalize"
                raise UsageError(f"{op} cannot follow {before}: the order is {order}")

    @classmethod
    def from_json(cls, data: bytes | str) -> Recipe:
        """The recipe that `to_json` wrote. Raises UsageError for anything else."""
        try:
            return cls(tuple(_decoder.decode(data)))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"not the JSON of a recipe: {error}") from error

    def to_json(self) -> bytes:
        """The canonical JSON: equal recipes have equal bytes. Raises UsageError for Map, which has no JSON form."""
        for op in self.of(Map):
            raise UsageError(f"{op} is Python code and has no JSON form: keep the recipe on this machine's CPU pool")
        return msgspec.json.encode(self.operations)

    @property
    def digest(self) -> str:
        """Twelve hex digits that name the recipe on every machine; of a Map only the function's name is known."""
        canonical = msgspec.json.encode([_anywhere(op) for op in self.operations], enc_hook=_name)
        return hashlib.sha256(canonical).hexdigest()[:12]

    def of(self, kind: type[T]) -> list[T]:
        """The operations of this kind."""
        return [op for op in self.operations if isinstance(op, kind)]

    def numbered(self, kind: type[T]) -> list[tuple[int, T]]:
        """The operations of this kind, each with its position, by which it finds its uniform numbers."""
        return [(k, op) for k, op in enumerate(self.operations) if isinstance(op, kind)]

    @property
    def decode(self) -> Decode | None:
        return next(iter(self.of(Decode)), None)

    @property
    def normalize(self) -> Normalize | None:
        return next(iter(self.of(Normalize)), None)

    @property
    def on_arrays(self) -> bool:
        """Whether it only moves pixels and changes their values, so that whole batches of arrays can be worked on."""
        return self.decode is None and all(isinstance(op, Rearrangement) for op in self.of(Geometry))

    def split(self, *, accelerator: bool) -> tuple[Recipe, Normalize | None]:
        """(what the workers do, what is left for the target), for a target that is an accelerator or not.

        Raises:
            UsageError: Normalize is to run on the target, and something follows it.
        """
        last, normalize = self.operations[-1] if self.operations else None, self.normalize
        if normalize is None or normalize.where == "worker" or (normalize.where == "auto" and not accelerator):
            return self, None
        if last is normalize:
            return Recipe(self.operations[:-1]), normalize
        if normalize.where == "auto":
            return self, None
        raise UsageError(f'{last} follows Normalize(where="target"): only the last operation can run on the target')

    def mapped(self, form: Form) -> Form:
        """The form of a sample before Normalize. Raises UsageError, naming the shapes, where it does not fit."""
        return functools.reduce(_output, (op for op in self.operations if op.STAGE <= Map.STAGE), form)

    def field(self, form: Form) -> Field:
        """The output for images of `form`, by which buffers are made before the first batch.

        Raises:
            UsageError: the recipe does not fit the images, or leaves their size open.
        """
        form = functools.reduce(_output, self.operations, form)
        if form.height is None or form.width is None:
            raise UsageError(f"the recipe leaves the size of the images open ({form}): crop to a size, CenterCrop(224)")
        return Field("image", form.dtype, (form.channels, form.height, form.width))

    def uniforms(self, seed: int, epoch: int, ids: NDArray[Any]) -> list[Uniforms]:
        """The uniform numbers of each operation for these samples, each (batch, operation's DRAWS)."""
        return [draws(seed, epoch, ids, k, op.DRAWS) for k, op in enumerate(self.operations)]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def __repr__(self) -> str:
        return f"Recipe([{', '.join(map(repr, self.operations))}])"


def form_of(shape: Sequence[int], dtype: str) -> Form:
    """The form of one array (height, width[, channel]). Raises UsageError where it is no image."""
    if len(shape) not in (2, 3):
        raise UsageError(f"a recipe works on images of shape (height, width[, channel]), not on {tuple(shape)}")
    height, width, *channels = shape
    return Form(height, width, channels[0] if channels else 1, dtype)


def check_pillow(form: Form) -> None:
    """Raise UsageError where images of `form` cannot be given to Pillow, which resizes and converts."""
    if form.dtype != "uint8" or form.channels not in CHANNELS.values():
        raise UsageError(f"images that are decoded or resized must be uint8 with 1 or 3 channels, not {form}")


def _anywhere(op: Operation) -> Operation:
    """The operation without what does not change its result."""
    return msgspec.structs.replace(op, where="auto") if isinstance(op, Normalize) else op


def _output(form: Form, op: Operation) -> Form:
    return op.output(form)


def _name(function: Any) -> str:
    """What the digest knows of a callable."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
