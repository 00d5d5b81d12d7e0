"""Wheels with kernels inside are for Linux on x86-64; without them they are for every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Names the platform of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it packs."""
        folder = Path(self.root) / "src" / "bayrace" / "nn" / "prebuilt"
        if version != "editable" and any(folder.glob("*.so")):
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-manylinux_2_28_x86_64"
