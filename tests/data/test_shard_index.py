"""The index of a shard: read once, kept, and never believed when it should not be."""

import os

import msgspec
import pytest

from ddlp.data import packed, shard_index
from ddlp.data.shards import TarShards
from ddlp.errors import DataError
from tests.data.making import tick
from tests.data.tars import samples, write_tar

pytestmark = pytest.mark.usefixtures("caches")


@pytest.fixture(autouse=True)
def _worth_keeping(monkeypatch):
    """Even small shards are worth an index."""
    monkeypatch.setattr(shard_index, "WORTH_KEEPING_NBYTES", 0)


@pytest.fixture
def shard(tmp_path):
    return write_tar(tmp_path / "a.tar", samples())


@pytest.fixture
def unread(monkeypatch):
    """A context in which no header is read."""

    def forbid():
        monkeypatch.setattr(shard_index, "members", lambda *_: pytest.fail("the shard was read"))

    return forbid


def test_a_shard_is_indexed_once(shard, unread):
    """The second time its headers are not read, and everything is the same."""
    first = TarShards(shard)
    unread()
    again = TarShards(shard)
    assert again.fingerprint == first.fingerprint
    assert [again.place(id_) for id_ in range(3)] == [first.place(id_) for id_ in range(3)]


def test_another_file_is_indexed_anew(shard):
    """A shard that was replaced, rewritten or grown is read again, also when its size and time are as before."""
    TarShards(shard)
    status = os.stat(shard)
    tick(shard.parent)
    write_tar(shard, samples(3, first=5))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert os.stat(shard).st_size == status.st_size
    assert TarShards(shard).labels.tolist() == [5, 6, 7]


def test_each_way_to_read_a_shard_has_its_index(shard):
    """Labels of one kind, or other extensions, do not use the index of another."""
    assert TarShards(shard, label="cls").classes is None
    assert TarShards(shard, label="json:name").classes == ["class 0", "class 1"]
    with pytest.raises(DataError, match="no image"):
        TarShards(shard, extensions=[".jpg"])


def test_a_damaged_index_is_made_again(shard, caches):
    """Whatever has become of the kept file, the shard is read anew: it is never an error and never believed."""
    expected = TarShards(shard).fingerprint
    (kept,) = caches.iterdir()
    good = kept.read_bytes()
    damaged = [
        b"",
        b"x",
        good[:-1],
        good + b"x",
        *(good[:k] + bytes([good[k] ^ 4]) + good[k + 1 :] for k in range(0, len(good), 13)),
    ]
    for data in damaged:
        kept.write_bytes(data)
        assert TarShards(shard).fingerprint == expected
        assert kept.read_bytes() == good


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": b"\0" * 8}, {"nbytes": b"\xff" * 24}, {"nbytes": b"\0" * 23}, {"codes": b"\x09" + b"\0" * 23},
        {"ends": b"\xff" * 24}, {"text": b"short"}, {"values": ()}, {"values": (3,)}, {"stamp": None},
    ],
    ids=str,
)  # fmt: skip
def test_an_index_that_makes_no_sense_is_made_again(shard, caches, change):
    """Numbers that cannot be, under a right checksum, are no index either."""
    expected = TarShards(shard).fingerprint
    (kept,) = caches.iterdir()
    columns = msgspec.msgpack.decode(kept.read_bytes()[4:])
    packed.save(str(kept), msgspec.defstruct("Changed", list(columns))(**{**columns, **change}))
    assert packed.load(str(kept), shard_index.ShardIndex) is None
    assert TarShards(shard).fingerprint == expected


def test_nothing_is_kept_that_is_not_wanted(shard, caches, monkeypatch, tmp_path):
    """Not with keep_index=False, of a small shard or a new one, or where nothing can be written."""
    TarShards(shard, keep_index=False)
    assert not caches.exists()
    monkeypatch.setattr(shard_index, "WORTH_KEEPING_NBYTES", 1 << 20)
    TarShards(shard)
    monkeypatch.setattr(shard_index, "WORTH_KEEPING_NBYTES", 0)
    monkeypatch.setattr(packed, "_RACY_NS", 2 * 10**9)
    TarShards(shard)
    assert not caches.exists()
    monkeypatch.setattr(packed, "_RACY_NS", -(10**18))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert TarShards(shard).labels.tolist() == [0, 1, 2]
