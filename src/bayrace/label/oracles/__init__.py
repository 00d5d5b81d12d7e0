"""Kinds of oracles, one a file."""

from __future__ import annotations

from bayrace.core.registry import Registry
from bayrace.label.oracle import Oracle

ORACLES: Registry[type[Oracle]] = Registry(
    "oracle", package="bayrace.label.oracles", group="bayrace.oracles"
)
"""By the name in configurations and on the command line."""
