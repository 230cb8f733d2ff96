"""The shortest whole program: make images, stream them from both ends, see who did what."""

import tempfile

import ddlp
from ddlp.data.synthetic import make_photos

with tempfile.TemporaryDirectory() as folder:
    make_photos(folder, classes=4, per_class=40)

    loader = ddlp.Loader(
        ddlp.ImageFolder(folder),
        ddlp.recipes.imagenet_train(224),
        batch_size=8,
        shuffle=True,
        devices=[ddlp.CpuPool(workers=1), ddlp.EmulatedCsd(slowdown=4)],
        policy="wrr",
    )
    with loader:
        for images, labels in loader:
            info = loader.info
            print(f"batch {info.index:2} from {info.device}: {tuple(images.shape)}, labels {labels.tolist()}")
        print(loader.explain())
