"""ddlp, as its guide says. Its epochs end every time that the set does; those of most peers here do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from driver import SIZE, Crop, Driver, repeated
from PIL import Image

import ddlp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class Ddlp(Driver):
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    skipped_epochs = 0

    def batches(self) -> Iterator[Any]:
        loader = self._loader(normalize=self.job.float32)
        for _ in range(self.skipped_epochs):
            for _ in loader:
                pass
        return repeated(loader)

    def crops(self, crops: Sequence[Crop]) -> tuple[Sequence[Crop], NDArray[Any]]:
        """What a loader delivers, and the parts that its recipe has drawn for these samples: whatever the files are."""
        loader = self._loader(normalize=False)
        made: list[Crop] = []
        images = []
        for epoch in range(self.skipped_epochs + 1):
            for batch, _ in loader:
                if epoch == self.skipped_epochs and len(made) < len(crops):
                    made += [_drawn(loader, id_) for id_ in loader.info.sample_ids]
                    images.append(batch.numpy().transpose(0, 2, 3, 1).copy())
        return made, np.concatenate(images)

    def _loader(self, *, normalize: bool) -> ddlp.Loader:
        return ddlp.Loader(
            ddlp.ImageFolder(self.job.folder),
            ddlp.recipes.imagenet_train(SIZE, normalize=normalize),
            batch_size=self.job.batch_size,
            shuffle=True,
            num_workers=self.job.workers,
            **self.options,
        )


class DdlpCached(Ddlp):
    """From the second epoch on, which finds the decoded images in the cache."""

    options, skipped_epochs = {"cache": "decoded"}, 1


def _drawn(loader: ddlp.Loader, id_: int) -> Crop:
    """The part of a sample that the recipe takes in the epoch of the batch just delivered."""
    path = loader.dataset.path(id_)
    with Image.open(path) as image:
        width, height = image.size
    recipe = ddlp.recipes.imagenet_train(SIZE)
    _, crop, flip, _ = recipe.uniforms(loader.seed, loader.info.epoch, np.array([id_]))
    top, left, h, w = recipe.operations[1].part(height, width, crop[0].tolist())
    return Crop(path, left, top, w, h, mirror=bool(flip[0, 0] < 0.5))
