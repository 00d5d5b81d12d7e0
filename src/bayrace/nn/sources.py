"""C files, with what several of them share in its place, and with generated code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

_SHARED = (
    "vectors",
    "lanes",
    "sigmoid",
    "threads",
    "blocks",
    "tiles",
)  # files of bayrace.nn.program


@cache
def source_text(file: str, *, package: str = "bayrace.nn") -> str:
    """The text of a C file, in which `//@ lanes` and the like stood for the files they name."""
    text = resources.files(package).joinpath(file).read_text("utf-8")
    for name in _SHARED:
        if f"//@ {name}\n" in text:
            shared = resources.files("bayrace.nn.program").joinpath(f"{name}.c").read_text("utf-8")
            text = text.replace(f"//@ {name}\n", shared)
    return text


def assembled(text: str, bodies: Mapping[str, str], sizes: Mapping[str, object]) -> str:
    """C source with generated code in place of `//@ name`, below a definition of every size."""
    for name, body in bodies.items():
        text = text.replace(f"//@ {name}\n", body + "\n")
    return "".join(f"#define {name} {value}\n" for name, value in sizes.items()) + text
