"""Recalibration: make predicted uncertainties agree with the errors seen on validation data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayrace.core.registry import Registry

if TYPE_CHECKING:  # which imports torch
    from bayrace.calibrate.method import RecalibrationMethod

RECALIBRATIONS: Registry[type[RecalibrationMethod]] = Registry(
    "recalibration", package="bayrace.calibrate", group="bayrace.recalibrations"
)
"""By the name in configurations; see `bayrace.calibrate.method`."""
