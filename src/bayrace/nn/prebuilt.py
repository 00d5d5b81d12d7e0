"""Kernels that a wheel brings along, for machines without a C compiler.

`make wheel` builds the kernels of the presets tiny, small and medium for two kinds of x86-64
processors. A library is named by a hash of its source, definitions and kind of processor. What
is not found here is compiled (`bayrace.nn.compiler`) or computed by plain PyTorch.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "prebuilt"

LEVELS = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"),
}
"""Kinds of processors, the best first, and what Linux calls the features that they need."""

_VECTOR_BYTES = {"x86-64-v4": 64, "x86-64-v3": 32}


def place(folder: Path, source: str, defines: Mapping[str, str], level: str) -> Path:
    """Where the library of a source belongs."""
    text = "\0".join((source, *(f"{name}={value}" for name, value in defines.items()), level))
    return folder / f"kernel-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"


def find(source: str, defines: Mapping[str, str]) -> ctypes.CDLL | None:
    """The library of a source, if there is one for this processor and it can be loaded."""
    level = processor()
    if level is None:
        return None
    library = place(FOLDER, source, defines, level)
    try:
        return ctypes.CDLL(str(library)) if library.exists() else None
    except OSError:  # a C library that is too old
        return None


def vector_bytes() -> int | None:
    """Of this processor, if there are kernels for it."""
    level = processor()
    return None if level is None else _VECTOR_BYTES[level]


@cache
def processor() -> str | None:
    """The kind of this processor; None where nothing was built for it."""
    if not (FOLDER.is_dir() and sys.platform == "linux" and platform.machine() == "x86_64"):
        return None
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    flags = set(line.split())
    return next((name for name, needed in LEVELS.items() if flags.issuperset(needed)), None)
