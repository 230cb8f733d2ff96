"""From bytes in a slot to what the training loop gets: tensors that view the slot, without a copy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ddlp.data.python import unpack
from ddlp.errors import UsageError

if TYPE_CHECKING:
    import torch

    from ddlp.data.ops import Normalize
    from ddlp.engine import Delivered


class Unpacker:
    """Makes a delivered batch into tensors on `target`, and does there what is left of the recipe: `normalize`.

    On the CPU they share the slot's memory, and the slot is free again when the last of them is gone. On an
    accelerator they are copies there.
    """

    def __init__(self, target: str, normalize: Normalize | None = None) -> None:
        self._target = target
        self._normalize = normalize

    def __call__(self, batch: Delivered) -> Any:
        tensors = tuple(
            self._tensor(array, leaf.dtype)
            for array, leaf in zip(batch.value.hand_over(batch.ref.leaves), batch.ref.leaves, strict=True)
        )
        if batch.ref.skeleton is not None:
            return unpack(batch.ref.skeleton, tensors)
        return tensors if self._normalize is None else (self._normalised(tensors[0]), *tensors[1:])

    def _tensor(self, array: Any, dtype: str) -> torch.Tensor:
        import torch

        tensor = torch.from_numpy(array)
        if dtype == "bfloat16":  # numpy has no such type: the bytes travel as integers of the same size
            tensor = tensor.view(torch.bfloat16)
        return tensor if self._target == "cpu" else tensor.to(self._target)

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Float32 (batch, channel, height, width) of uint8 ones, rounded after each step as a worker rounds."""
        return images.float().div_(255).sub_(self._column("mean")).div_(self._column("std"))

    @functools.cache  # noqa: B019  # an unpacker lives as long as its loader
    def _column(self, name: str) -> torch.Tensor:
        """The mean or std of each channel, (channel, 1, 1) float32 on the target."""
        import torch

        return torch.tensor(getattr(self._normalize, name), dtype=torch.float32, device=self._target)[:, None, None]


def is_accelerator(target: str) -> bool:
    """Whether batches leave the CPU. Raises UsageError where there is no such target.

    "cpu" is answered without torch, whose import takes a second that the start of the workers can be used for.
    """
    if target == "cpu":
        return False
    import torch

    try:
        device = torch.device(target)
    except RuntimeError as error:
        raise UsageError(f"target {target!r} is no device that torch knows: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"target {target!r}: torch sees no CUDA device here")
    return device.type != "cpu"
