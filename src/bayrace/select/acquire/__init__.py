"""Acquisitions: ways to choose structures worth labelling, by their names, one idea a file."""

from __future__ import annotations

from bayrace.core.registry import Registry
from bayrace.select.acquire.interface import Acquisition, AcquisitionError

__all__ = ["ACQUISITIONS", "Acquisition", "AcquisitionError", "acquisition"]

ACQUISITIONS: Registry[type[Acquisition]] = Registry(
    "acquisition", package="bayrace.select.acquire", group="bayrace.acquisitions"
)


def acquisition(by: str | Acquisition) -> Acquisition:
    """The acquisition of this name, with its default options; itself if it is one already."""
    if not isinstance(by, str):
        return by
    try:
        return ACQUISITIONS.find(by)()
    except ValueError as error:
        raise AcquisitionError(str(error)) from None
