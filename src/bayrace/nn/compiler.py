"""Compiling C at run time: built once per machine, kept in the user's cache, loaded with ctypes.

The cache is $BAYRACE_CACHE, else $XDG_CACHE_HOME/bayrace, else ~/.cache/bayrace; the compiler is
$CC, else cc, gcc or clang. A library's name is a hash of its source, its flags and everything the
compiler says of itself and of this processor, and it appears under that name complete or not at
all, so that several processes may build at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore

FLAGS = ("-O2", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast")
OPENMP = "-fopenmp"

_TURNS = BoundedSemaphore(os.cpu_count() or 1)


class CompilerError(RuntimeError):
    """There is no compiler, or it refused."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler that works on this machine."""

    command: str
    identity: str  # what it predefines for this processor, its version included
    target: tuple[str, ...]  # flags that select this processor
    threads: bool  # it has OpenMP
    vector_bytes: int

    @property
    def flags(self) -> tuple[str, ...]:
        """What every build is given."""
        return (*FLAGS, *self.target, *((OPENMP,) if self.threads else ()))


def build(source: str, defines: dict[str, str]) -> ctypes.CDLL:
    """The library of this source, from the cache or compiled now.

    Raises:
        CompilerError: no compiler, or it refused the source.
    """
    compiler = find_compiler()
    flags = (*compiler.flags, *(f"-D{name}={value}" for name, value in defines.items()))
    text = "\0".join((source, *flags, compiler.command, compiler.identity))
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    library = cache_folder() / f"convolution-{name}.so"
    if not library.exists():
        _compile(compiler, flags, source, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise CompilerError(f"cannot load {library}: {error}; delete it to build anew") from error


def cache_folder() -> Path:
    """Where compiled libraries are kept; created if need be."""
    if chosen := os.environ.get("BAYRACE_CACHE"):
        folder = Path(chosen)
    elif base := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(base) / "bayrace"
    else:
        folder = Path.home() / ".cache" / "bayrace"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CompilerError(
            f"cannot write to {folder}: {error}; set BAYRACE_CACHE to a folder of yours"
        ) from error
    return folder


def find_compiler() -> Compiler:
    """The compiler to use.

    Raises:
        CompilerError: none was found, or it does not run.
    """
    return _inspect(os.environ.get("CC", ""))


@cache
def _inspect(chosen: str) -> Compiler:
    names = (chosen,) if chosen else ("cc", "gcc", "clang")
    command = next((path for name in names if (path := shutil.which(name))), None)
    if command is None:
        raise CompilerError(
            f"no C compiler ({', '.join(names)}); install gcc, or set CC to a compiler"
        )
    for target in (("-march=native",), ("-mcpu=native",), ()):
        macros = _run((command, *target, "-dM", "-E", "-x", "c", os.devnull))
        if macros.returncode == 0:
            break
    else:
        raise CompilerError(f"{command} does not run: {macros.stderr.strip()[-500:]}")
    threaded = _run((command, OPENMP, "-E", "-x", "c", os.devnull)).returncode == 0
    return Compiler(command, macros.stdout, target, threaded, _vector_bytes(macros.stdout))


def _vector_bytes(macros: str) -> int:
    if "__AVX512F__" in macros:
        return 64
    return 32 if "__AVX__" in macros else 16


def _compile(compiler: Compiler, flags: tuple[str, ...], source: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        code, built = Path(folder) / "source.c", Path(folder) / "library.so"
        code.write_text(source, "utf-8")
        with _TURNS:
            result = _run((compiler.command, *flags, str(code), "-o", str(built)))
        if result.returncode != 0 or not built.exists():
            raise CompilerError(
                f"{compiler.command} failed; report this output: {result.stderr.strip()[-2000:]}"
            )
        built.replace(library)


def _run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise CompilerError(f"{command[0]} does not run: {error}") from error
