"""From bytes in a slot to what the training loop gets: tensors that view the slot, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlp.data.python import unpack
from ddlp.errors import UsageError

if TYPE_CHECKING:
    import torch

    from ddlp.engine import Delivered


class Unpacker:
    """Makes a delivered batch into tensors on `target`.

    On the CPU they share the slot's memory, and the slot is free again when the last of them is gone. On an
    accelerator they are copies there.

    Raises:
        UsageError: there is no such target.
    """

    def __init__(self, target: str) -> None:
        import torch

        try:
            self._device = torch.device(target)
        except RuntimeError as error:
            raise UsageError(f"target {target!r} is no device that torch knows: {error}") from error
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"target {target!r}: torch sees no CUDA device here")

    def __call__(self, batch: Delivered) -> Any:
        tensors = tuple(
            self._tensor(array, leaf.dtype)
            for array, leaf in zip(batch.value.hand_over(batch.ref.leaves), batch.ref.leaves, strict=True)
        )
        return tensors if batch.ref.skeleton is None else unpack(batch.ref.skeleton, tensors)

    def _tensor(self, array: Any, dtype: str) -> torch.Tensor:
        import torch

        tensor = torch.from_numpy(array)
        if dtype == "bfloat16":  # numpy has no such type: the bytes travel as integers of the same size
            tensor = tensor.view(torch.bfloat16)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=False)
