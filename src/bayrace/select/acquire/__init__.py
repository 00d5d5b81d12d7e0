"""Acquisitions: ways to choose structures worth labelling, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from bayrace.select.acquire import bald, diverse, farthest, random, variance
from bayrace.select.acquire.interface import Acquisition, AcquisitionError

__all__ = ["ACQUISITIONS", "Acquisition", "AcquisitionError", "acquisition"]

_FILES = (random, variance, bald, farthest, diverse)
ACQUISITIONS: Mapping[str, Acquisition] = MappingProxyType(
    {name: each for file in _FILES for name, each in file.ACQUISITIONS.items()}
)


def acquisition(name: str) -> Acquisition:
    """The acquisition of this name."""
    if name not in ACQUISITIONS:
        near = get_close_matches(name, ACQUISITIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(ACQUISITIONS)}"
        raise AcquisitionError(f"{name!r} is no acquisition; {hint}")
    return ACQUISITIONS[name]
