"""Helpers: tar archives as WebDataset writes them."""

import io
import json
import tarfile

from PIL import Image


def png(value=0, size=(3, 2)):
    file = io.BytesIO()
    Image.new("RGB", size, (value, 0, 255 - value)).save(file, "PNG")
    return file.getvalue()


def write_tar(path, files, form=tarfile.PAX_FORMAT):
    """An archive of (name, content); content None makes a folder."""
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            if data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(data)
            archive.addfile(member, None if data is None else io.BytesIO(data))
    return path


def samples(count=3, first=0):
    """Files of so many samples: image k, its number in .cls, and the same in .json."""
    for k in range(first, first + count):
        yield f"{k:04}.png", png(k)
        yield f"{k:04}.cls", b"%d\n" % k
        yield f"{k:04}.json", json.dumps({"label": k, "name": f"class {k % 2}"}).encode()
