"""ddlp: stream one training set from both ends at once. Public names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ArrayDataset": "ddlp.data.sources",
    "BatchFailed": "ddlp.errors",
    "BatchTimeout": "ddlp.errors",
    "BusyError": "ddlp.errors",
    "CIFAR10": "ddlp.data.sources",
    "ClosedError": "ddlp.errors",
    "CpuPool": "ddlp.devices.cpu",
    "DataError": "ddlp.errors",
    "DdlpError": "ddlp.errors",
    "DecodedCache": "ddlp.data.cache",
    "Device": "ddlp.devices.base",
    "DeviceError": "ddlp.errors",
    "DeviceLost": "ddlp.errors",
    "EmulatedCsd": "ddlp.devices.emulated",
    "Faults": "ddlp.agent.faults",
    "HEAD": "ddlp.types",
    "ImageFolder": "ddlp.data.sources",
    "Loader": "ddlp.loader",
    "MTE": "ddlp.policies.mte",
    "Order": "ddlp.types",
    "Policy": "ddlp.policies.base",
    "Recipe": "ddlp.data.recipe",
    "Replay": "ddlp.policies.replay",
    "SampleError": "ddlp.errors",
    "Side": "ddlp.types",
    "TAIL": "ddlp.types",
    "TarShards": "ddlp.data.sources",
    "UsageError": "ddlp.errors",
    "WRR": "ddlp.policies.wrr",
    "recipes": "ddlp.data.recipes",
}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ddlp' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "recipes" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
