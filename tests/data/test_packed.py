"""Packed indices: many names in two buffers, and the place where an index is kept."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlp.data import packed
from ddlp.data.packed import Names

names = st.lists(st.binary(max_size=9))


@given(names)
def test_names_come_back(listed):
    """Names of any bytes and any number, empty ones too, come back as the file system gives them."""
    assert list(Names(*packed.packed(listed))) == [os.fsdecode(name) for name in listed]


@given(st.lists(names, min_size=1))
def test_names_of_several_parts_are_joined(parts):
    """Parts packed by themselves, joined, are all of them packed at once."""
    joined = Names.joined([packed.packed(part) for part in parts])
    assert list(joined) == [os.fsdecode(name) for part in parts for name in part]


@given(st.binary(max_size=20), st.lists(st.integers(-3, 25), max_size=4))
def test_only_what_was_packed_is_taken(text, ends):
    """Ends that do not rise, or not to the end of the text, are refused; with all others every name can be had."""
    data = b"".join(end.to_bytes(8, "little", signed=True) for end in ends)
    if sorted(ends) == ends and all(end >= 0 for end in ends) and (ends or [0])[-1] == len(text):
        packed.check_packed(text, data)
        assert "".join(Names(text, data)) == os.fsdecode(text)
    else:
        with pytest.raises(ValueError, match="ends"):
            packed.check_packed(text, data)
    with pytest.raises(ValueError, match="multiple"):
        packed.check_packed(text, data + b"1")


def test_the_cache_folder_is_where_it_is_said(monkeypatch):
    """$XDG_CACHE_HOME where it is a full path, else ~/.cache; nowhere when there is no home."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert packed.kept_path("x", b"key").startswith("/caches/ddlp/")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert packed.kept_path("x", b"key").startswith("/home/me/.cache/ddlp/")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert packed.kept_path("x", b"key") is None
