"""Tar archives: what they hold, whoever wrote them, and what damaged ones do."""

import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlp.data.tar import BLOCK, content, members
from ddlp.errors import DataError
from tests.data.tars import write_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
EVERY_FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def read_tar(path):
    """(name, content) of all regular files, as we see them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return [(member.name, content(fd, member)) for member in members(fd, os.fstat(fd).st_size, str(path))]
    finally:
        os.close(fd)


def outcome(path):
    """What it holds, or the message of why it is refused."""
    try:
        return read_tar(path)
    except DataError as error:
        return str(error)


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=60)
paths = st.lists(names, min_size=1, max_size=6).map("/".join)


@EVERY_FORMAT
@given(st.lists(st.tuples(paths, st.binary(max_size=2000)), max_size=6))
def test_members_are_those_that_tarfile_finds(tmp_path_factory, form, files):
    """Names of any length and alphabet, and contents of any length, are those that Python's own reader finds."""
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    try:
        write_tar(path, files, form)
    except ValueError:
        assert form == tarfile.USTAR_FORMAT  # which has no room for long names
        return
    with tarfile.open(path) as archive:
        expected = [(m.name, archive.extractfile(m).read()) for m in archive.getmembers()]
    assert read_tar(path) == expected


def test_names_that_are_not_utf_8_find_their_file(tmp_path):
    """A name of any bytes comes back as the file system would give it."""
    name = os.fsdecode(b"\xff\xfe.png")
    for form in FORMATS.values():
        assert read_tar(write_tar(tmp_path / "a.tar", [(name, b"x")], form)) == [(name, b"x")]


def test_only_regular_files_are_members(tmp_path):
    """Folders, links and devices are passed over, as are headers about all members."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}) as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo("no-file")
            member.type, member.linkname = kind, "elsewhere" * 30
            archive.addfile(member)
        archive.addfile(tarfile.TarInfo("file"))
    assert read_tar(path) == [("file", b"")]


@EVERY_FORMAT
def test_more_than_eight_gibibytes_are_counted(tmp_path, form):
    """Sizes that octal digits have no room for are read in base 256 and from pax records."""
    large = tarfile.TarInfo("large")
    large.size = 9 << 30
    if form == tarfile.USTAR_FORMAT:
        large.size = (8 << 30) - 1  # the most that it can say
    header = large.tobuf(form)
    end = len(header) + -(-large.size // BLOCK) * BLOCK
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(header)
        file.seek(end)
        file.write(tarfile.TarInfo("behind").tobuf(form) + bytes(2 * BLOCK))
        nbytes = file.tell()
    fd = os.open(tmp_path / "a.tar", os.O_RDONLY)
    try:
        found = list(members(fd, nbytes, "a.tar"))
    finally:
        os.close(fd)
    assert [(member.name, member.nbytes) for member in found] == [("large", large.size), ("behind", 0)]


@EVERY_FORMAT
def test_a_cut_shard_names_itself_and_the_member(tmp_path, form):
    """Wherever an archive of three members is cut, DataError names the archive and the member where it ends."""
    files = [("a.png", b"1" * 700), ("b" * 120 + "/c.png", b"2" * 10), ("d.png", b"3" * 1024)]
    if form == tarfile.USTAR_FORMAT:
        files[1] = ("b/c.png", b"2" * 10)
    whole = write_tar(tmp_path / "whole.tar", files, form).read_bytes()
    path = tmp_path / "cut.tar"
    end = whole.rindex(b"3") + 1
    for cut in [*range(0, end, 97), 512, 1211, 1212, end - 1, end, end + BLOCK - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError) as caught:
            read_tar(path)
        assert repr(str(path)) in str(caught.value)
        if cut > 512:
            assert any(repr(name) in str(caught.value) for name, _ in files)
    path.write_bytes(whole[: end + BLOCK])
    assert read_tar(path) == files


@given(st.data())
def test_damaged_archives_are_refused_or_read_the_same(tmp_path_factory, data):
    """A header with a flipped bit never gives another member: it is a DataError, or the bit did not matter."""
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    files = [("a" * 150, b"1"), ("b.png", b"2" * 600)]
    write_tar(path, files, data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])))
    whole = bytearray(path.read_bytes())
    headers = [at for at in range(0, len(whole), BLOCK) if whole[at + 257 : at + 262] == b"ustar"]
    at = data.draw(st.sampled_from(headers)) + data.draw(st.integers(0, BLOCK - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    assert outcome(path) == files or repr(str(path)) in outcome(path)


def with_checksum(header):
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@given(st.lists(st.tuples(st.integers(100, 499), st.binary(min_size=1, max_size=30))), st.binary(max_size=1500))
def test_no_header_does_harm(tmp_path_factory, changes, behind):
    """Whatever a header says, whose checksum is right, the archive is read or refused, and that ends."""
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    header = bytearray(tarfile.TarInfo("name").tobuf(tarfile.PAX_FORMAT))
    for at, data in changes:
        header[at : at + len(data)] = data
    path.write_bytes(with_checksum(header[:BLOCK]) + behind + bytes(2 * BLOCK))
    assert isinstance(outcome(path), list) or repr(str(path)) in outcome(path)


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([b"12 path=x.y\n", b"11 size=1\n", b"-5 a=b\n", b"9999999"])).map(b"".join)
)
def test_no_pax_record_does_harm(tmp_path_factory, records):
    """Records of any content are read or refused."""
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    padded = records.ljust(-(-len(records) // BLOCK) * BLOCK, b"\0")
    path.write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + padded + tarfile.TarInfo("file").tobuf() + bytes(2 * BLOCK))
    assert isinstance(outcome(path), list) or any(word in outcome(path) for word in ("pax", "number", "cut off"))


def test_what_is_said_of_a_member_is_bounded(tmp_path):
    """A header that announces a name of gigabytes is refused and not read."""
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 31
    path = tmp_path / "a.tar"
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 1 << 32)
    with pytest.raises(DataError, match="bytes are said of one member"):
        read_tar(path)


@pytest.mark.parametrize("data", [b"\x1f\x8b" + bytes(600), b"PK" * 400], ids=["gzip", "zip"])
def test_other_files_are_no_shards(tmp_path, data):
    """A compressed archive is a DataError that says what to do."""
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.tar' is no sound tar archive.*unpack it first"):
        read_tar(path)


def test_sparse_members_are_refused(tmp_path):
    """GNU's sparse files, whose bytes are not those of the file, are a DataError."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = tarfile.TarInfo("0.png")
        if form == tarfile.GNU_FORMAT:
            member.type = tarfile.GNUTYPE_SPARSE
        else:
            member.pax_headers = {"GNU.sparse.major": "1"}
        (tmp_path / "a.tar").write_bytes(member.tobuf(form) + bytes(2 * BLOCK))
        with pytest.raises(DataError, match="sparse"):
            read_tar(tmp_path / "a.tar")
