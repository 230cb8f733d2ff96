"""The compiled loops over arrays, where they were built; numpy gives the same bytes, more slowly."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _built() -> Any:
    try:
        return import_module("ddlp.data._arrays")
    except ImportError:
        return None


loops: Any = _built()  # the module _arrays, or None without it
