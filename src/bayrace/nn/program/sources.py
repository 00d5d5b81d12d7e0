"""The C files of programs, with what several of them share in its place."""

from __future__ import annotations

from functools import cache
from importlib import resources

_SHARED = ("lanes", "sigmoid")


@cache
def source_text(file: str) -> str:
    """The text of a C file of this folder, complete."""
    return with_shared(resources.files("bayrace.nn.program").joinpath(file).read_text("utf-8"))


def with_shared(text: str) -> str:
    """C source in which `//@ lanes` and `//@ sigmoid` stood for the files of these names."""
    folder = resources.files("bayrace.nn.program")
    for name in _SHARED:
        shared = folder.joinpath(f"{name}.c").read_text("utf-8")
        text = text.replace(f"//@ {name}\n", shared)
    return text
