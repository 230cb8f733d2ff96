"""The listing of a folder: made once, kept, and made again after any change of what is there."""

import os
import shutil

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlp.data import listing, packed
from ddlp.data.folder import ImageFolder
from ddlp.data.listing import Listing, listed
from ddlp.errors import DataError
from tests.data.making import tick

SUFFIXES = (".png", ".jpg")

pytestmark = pytest.mark.usefixtures("caches")


@pytest.fixture(autouse=True)
def _worth_keeping(monkeypatch):
    """Even small listings are kept."""
    monkeypatch.setattr(listing, "WORTH_KEEPING", 0)


def fill(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.fixture
def root(tmp_path):
    """Three classes, one of them with folders in it and one of them a link to elsewhere."""
    fill(tmp_path / "elsewhere", "7.png", "deep/8.png")
    fill(tmp_path / "root", "a/1.png", "a/x/2.png", "a/x/y/3.jpg", "b/4.png", "b/.hidden/5.png", "cover.png")
    (tmp_path / "root/c").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "root"


@pytest.fixture
def counted(monkeypatch):
    """How many folders were read so far."""
    reads = []

    def scandir(path):
        reads.append(path)
        return scan(path)

    scan = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    return reads


def anew(root):
    return listed(str(root), SUFFIXES, keep=False)


def test_a_folder_is_listed_once(root, counted):
    """The second time no folder is read, and the listing is the same."""
    first = listed(str(root), SUFFIXES)
    assert counted
    counted.clear()
    assert listed(str(root), SUFFIXES) == first
    assert not counted
    assert first == anew(root)
    assert len(first) == 6


CHANGES = {
    "add a file": lambda root: (root / "a/0.png").touch(),
    "add a file deep down": lambda root: (root / "a/x/y/0.png").touch(),
    "add a file in a linked folder": lambda root: (root / "c/deep/0.png").touch(),
    "remove a file": lambda root: (root / "a/x/2.png").unlink(),
    "rename a file": lambda root: (root / "b/4.png").rename(root / "b/5.png"),
    "move a file": lambda root: (root / "b/4.png").rename(root / "a/4.png"),
    "replace a file": lambda root: (root / "a/1.png").replace(root / "b/4.png"),
    "link a file": lambda root: (root / "b/5.png").hardlink_to(root / "b/4.png"),
    "add a class": lambda root: (root / "0").mkdir(),
    "rename a class": lambda root: (root / "a").rename(root / "d"),
    "remove a class": lambda root: shutil.rmtree(root / "b"),
    "add a folder": lambda root: (root / "a/x/y/z").mkdir(),
    "rename a folder": lambda root: (root / "a/x/y").rename(root / "a/x/z"),
    "swap two folders": lambda root: swap(root / "a/x", root / "b"),
    "remove the target of a link": lambda root: shutil.rmtree(root.parent / "elsewhere/deep"),
    "link elsewhere": lambda root: ((root / "c").unlink(), (root / "c").symlink_to(root / "a")),
    "put another folder in the place of the target": lambda root: (
        (root.parent / "elsewhere").rename(root.parent / "away"),
        fill(root.parent / "elsewhere", "9.png"),
    ),
}


def swap(one, other):
    one.rename(one.parent / "aside")
    other.rename(one)
    (one.parent / "aside").rename(other)


@pytest.mark.parametrize("back_in_time", [False, True], ids=["", "times set back"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen(root, change, back_in_time):
    """What is added, removed, renamed or linked, however deep, is in the next listing, whatever times are set."""
    listed(str(root), SUFFIXES)
    before = anew(root)
    times = {folder: os.stat(folder) for folder, *_ in os.walk(root, followlinks=True)}
    tick(root.parent)
    change(root)
    for folder, status in times.items() if back_in_time else ():
        if os.path.exists(folder):
            os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not before.is_current(str(root))
    assert listed(str(root), SUFFIXES) == anew(root)


def test_what_a_file_holds_does_not_matter(root, counted):
    """Writing to files, and reading them, leaves the listing as it is."""
    listed(str(root), SUFFIXES)
    tick(root.parent)
    (root / "a/1.png").write_bytes(b"other content")
    (root / "a/1.png").read_bytes()
    counted.clear()
    listed(str(root), SUFFIXES)
    assert not counted


folders = st.sampled_from(["", "a", "b", "a/x", "b/x"])
steps = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "make", "rename"]), folders, st.integers(0, 2)), max_size=4
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=4))
def test_the_listing_is_always_that_of_now(tmp_path_factory, rounds):
    """After any changes, and whatever was kept before them, the listing is what listing anew gives."""
    root = fill(tmp_path_factory.mktemp("root"), "a/0.png", "a/x/1.png", "b/0.png")
    for changes in rounds:
        tick(root.parent)
        for step in changes:
            apply(root, *step)
        assert listed(str(root), SUFFIXES) == anew(root)


def apply(root, verb, folder, number):
    """One change, if it can be made."""
    path = root / folder / (f"{number}.png" if verb in ("add", "remove") else f"x{number}")
    try:
        if verb == "add":
            path.touch()
        elif verb == "remove":
            path.unlink()
        elif verb == "make":
            path.mkdir()
        else:
            (root / folder).rename(path)
    except OSError:
        pass


def test_each_root_and_suffix_has_its_listing(root, tmp_path):
    """Other suffixes, or another folder, do not use this one's; a link to it does."""
    assert len(listed(str(root), SUFFIXES)) == 6
    assert len(listed(str(root), (".jpg",))) == 1
    assert len(listed(str(fill(tmp_path / "other", "a/1.png")), SUFFIXES)) == 1
    (tmp_path / "link").symlink_to(root)
    assert listed(str(tmp_path / "link"), SUFFIXES) == listed(str(root), SUFFIXES)


def test_a_moved_folder_is_the_folder_that_it_is(root, tmp_path):
    """A folder in the place of another is not taken for it."""
    listed(str(root), SUFFIXES)
    root.rename(tmp_path / "old")
    fill(root, "z/1.png")
    assert listed(str(root), SUFFIXES).classes == (b"z",)


def test_a_folder_that_has_just_changed_is_not_trusted(root, caches, monkeypatch):
    """A second change in the same tick of the clock would leave no trace, so for two seconds nothing is kept."""
    monkeypatch.setattr(packed, "_RACY_NS", 2 * 10**9)
    listed(str(root), SUFFIXES)
    assert not caches.exists()
    now_ns = max(max(os.stat(f).st_ctime_ns, os.stat(f).st_mtime_ns) for f, *_ in os.walk(root, followlinks=True))
    monkeypatch.setattr(listing.time, "time_ns", lambda: now_ns + 2 * 10**9)
    listed(str(root), SUFFIXES)
    assert not caches.exists()
    monkeypatch.setattr(listing.time, "time_ns", lambda: now_ns + 2 * 10**9 + 1)
    listed(str(root), SUFFIXES)
    assert list(caches.iterdir())


def test_a_change_while_it_is_listed_is_seen(root, monkeypatch):
    """A file that comes while folders are being read is in this listing, or makes the next one anew."""
    scan = os.scandir

    def busy(path):
        entries = scan(path)
        if os.fspath(path).endswith("a/x"):
            tick(root.parent)
            (root / "a/x/late.png").touch()
        return entries

    monkeypatch.setattr(os, "scandir", busy)
    listed(str(root), SUFFIXES)
    monkeypatch.setattr(os, "scandir", scan)
    assert listed(str(root), SUFFIXES) == anew(root)


def test_a_damaged_listing_is_made_again(root, caches):
    """Whatever has become of the kept file, the folder is listed anew: never an error, and never believed."""
    expected = listed(str(root), SUFFIXES)
    (kept,) = caches.iterdir()
    good = kept.read_bytes()
    flipped = (good[:k] + bytes([good[k] ^ 4]) + good[k + 1 :] for k in range(len(good)))
    for data in (b"", b"x", good[:-1], good + b"x", *flipped):
        kept.write_bytes(data)
        assert packed.load(str(kept), Listing) is None
    assert listed(str(root), SUFFIXES) == expected
    assert kept.read_bytes() == good


@pytest.mark.parametrize(
    "change",
    [
        {"classes": (b"a",)}, {"counts": b"\0" * 24}, {"counts": b"\xff" * 24}, {"counts": b"\1" * 23},
        {"ends": b"\xff" * 48}, {"text": b""}, {"folders": ("a", 3)}, {"stamp": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_listing_that_makes_no_sense_is_made_again(root, caches, change):
    """Numbers that cannot be, under a right checksum, are no listing either."""
    expected = listed(str(root), SUFFIXES)
    (kept,) = caches.iterdir()
    columns = msgspec.structs.asdict(expected)
    packed.save(str(kept), msgspec.defstruct("Changed", list(columns))(**{**columns, **change}))
    assert packed.load(str(kept), Listing) is None
    assert listed(str(root), SUFFIXES) == expected


def test_a_file_of_any_size_is_bounded(root, caches, monkeypatch):
    """A kept file that is too large is not read, and none that large is written."""
    listed(str(root), SUFFIXES)
    (kept,) = caches.iterdir()
    os.truncate(kept, packed.MAX_NBYTES + 1)
    assert packed.load(str(kept), Listing) is None
    kept.unlink()
    monkeypatch.setattr(packed, "MAX_NBYTES", 20)
    listed(str(root), SUFFIXES)
    assert not kept.exists()


def test_nothing_is_kept_that_is_not_wanted(root, caches, monkeypatch, tmp_path):
    """Not with keep_listing=False, of a small folder, or where nothing can be written."""
    ImageFolder(root, keep_listing=False)
    assert not caches.exists()
    monkeypatch.setattr(listing, "WORTH_KEEPING", 100)
    ImageFolder(root)
    assert not caches.exists()
    monkeypatch.setattr(listing, "WORTH_KEEPING", 0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(ImageFolder(root)) == 6


def test_kept_and_fresh_folders_are_the_same(root, tmp_path):
    """An ImageFolder of a kept listing has the same paths, labels and fingerprint, whatever bytes are in the names."""
    os.rename(root / "b", os.fsencode(root) + b"/\xff")
    os.rename(root / "a/1.png", os.fsencode(root) + b"/a/\xfe.PNG")
    fresh, first, kept = ImageFolder(root, keep_listing=False), ImageFolder(root), ImageFolder(root)
    for folder in (first, kept):
        assert folder.fingerprint == fresh.fingerprint
        assert folder.classes == fresh.classes
        assert [folder.path(id_) for id_ in range(6)] == [fresh.path(id_) for id_ in range(6)]
    assert all(os.path.exists(kept.path(id_)) for id_ in range(6))


def test_a_folder_that_goes_while_it_is_listed_is_named(root, monkeypatch):
    """A folder that cannot be read is a DataError with its name, wherever it is."""
    scan = os.scandir

    def gone(path):
        if os.fspath(path).endswith("y"):
            os.rename(path, f"{path}-gone")
        return scan(path)

    monkeypatch.setattr(os, "scandir", gone)
    with pytest.raises(DataError, match="a/x/y"):
        ImageFolder(root)
