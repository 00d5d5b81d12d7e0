"""The C files of programs, with what several of them share in its place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

_SHARED = ("vectors", "lanes", "sigmoid", "threads", "blocks")


@cache
def source_text(file: str) -> str:
    """The text of a C file of this folder, complete."""
    return with_shared(resources.files("bayrace.nn.program").joinpath(file).read_text("utf-8"))


def with_shared(text: str) -> str:
    """C source in which `//@ lanes` and the like stood for the files of these names."""
    folder = resources.files("bayrace.nn.program")
    for name in _SHARED:
        shared = folder.joinpath(f"{name}.c").read_text("utf-8")
        text = text.replace(f"//@ {name}\n", shared)
    return text


def assembled(text: str, bodies: Mapping[str, str], sizes: Mapping[str, object]) -> str:
    """C source with generated code in place of `//@ name`, below a definition of every size."""
    for name, body in bodies.items():
        text = text.replace(f"//@ {name}\n", body + "\n")
    return "".join(f"#define {name} {value}\n" for name, value in sizes.items()) + text
