"""Interatomic potentials that know when they are wrong."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayrace.deploy.ase import Calculator
    from bayrace.potential.potential import Potential

__all__ = ["Calculator", "Potential", "__version__"]

try:
    __version__ = version("bayrace")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"

# Loaded on first use: torch takes seconds to import, `bayrace --help` should not.
_LAZY = {"Calculator": "bayrace.deploy.ase", "Potential": "bayrace.potential.potential"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'bayrace' has no attribute {name!r}; it has {__all__}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
