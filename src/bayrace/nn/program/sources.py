"""The C files of programs, with what several of them share in its place."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def source_text(file: str) -> str:
    """The text of a C file; `//@ lanes` stands for the sum over the lanes of a vector."""
    folder = resources.files("bayrace.nn.program")
    shared = folder.joinpath("lanes.c").read_text("utf-8")
    return folder.joinpath(file).read_text("utf-8").replace("//@ lanes\n", shared)
