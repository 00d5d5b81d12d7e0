"""Compiling C at run time: built once per machine, kept in the user's cache, loaded with ctypes.

The cache is $BAYRACE_CACHE, else $XDG_CACHE_HOME/bayrace, else ~/.cache/bayrace; the compiler is
$CC, else cc, gcc or clang. A library's name is a hash of its source, its flags and everything the
compiler says of itself and of this processor, and it appears under that name complete or not at
all, so that several processes may build at once.

What is loaded is executed. A cache that belongs to somebody else, or that others may write to, is
therefore refused, and so is a library whose SHA-256 is not the one that is kept beside it: it is
built anew. Whatever goes wrong is a CompilerError, for which there are kernels in plain PyTorch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore

from bayrace.nn import prebuilt

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
    """The library of this source: brought along by the wheel, from the cache, or compiled now.

    Raises:
        CompilerError: no compiler, or it refused the source.
    """
    if (found := prebuilt.find(source, defines)) is not None:
        return found
    compiler = find_compiler()
    flags = (*compiler.flags, *(f"-D{name}={value}" for name, value in defines.items()))
    text = "\0".join((source, *flags, compiler.command, compiler.identity))
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    library = cache_folder() / f"convolution-{name}.so"
    try:
        if not _intact(library):
            _compile(compiler, flags, source, library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise CompilerError(
            f"cannot build or load {library}: {error}; make room there, or set BAYRACE_CACHE to "
            "another folder of yours"
        ) from error


def build_for(level: str, source: str, defines: dict[str, str], folder: Path) -> ctypes.CDLL:
    """The library of this source for a kind of processor (`prebuilt.LEVELS`), for a wheel.

    Raises:
        CompilerError: no compiler, or it refused the source.
    """
    compiler, library = find_compiler(), prebuilt.place(folder, source, defines, level)
    if not library.exists():
        threads = (OPENMP,) if compiler.threads else ()
        given = (f"-D{name}={value}" for name, value in defines.items())
        _compile(compiler, (*FLAGS, f"-march={level}", *threads, *given), source, library)
        _digest_of(library).unlink()
    return ctypes.CDLL(str(library))


def vector_bytes() -> int:
    """Bytes in the vectors that kernels compute with.

    Raises:
        CompilerError: no compiler, and nothing was brought along for this processor.
    """
    return prebuilt.vector_bytes() or find_compiler().vector_bytes


def cache_folder() -> Path:
    """Where compiled libraries are kept; created if need be."""
    try:
        folder = _chosen_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except (OSError, RuntimeError) as error:  # the latter where nobody knows a home
        raise CompilerError(
            f"no folder for compiled kernels: {error}; set BAYRACE_CACHE to a folder of yours"
        ) from error
    if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
        raise CompilerError(
            f"{folder} belongs to another user, who could put programs there; set BAYRACE_CACHE "
            "to a folder of yours"
        )
    if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CompilerError(
            f"{folder} may be written by others, who could put programs there; protect it with "
            f"`chmod go-w {folder}`, or set BAYRACE_CACHE to a folder of yours"
        )
    return folder


def _chosen_folder() -> Path:
    if chosen := os.environ.get("BAYRACE_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "bayrace"
    return Path.home() / ".cache" / "bayrace"


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
        content = built.read_bytes()
        _write(built, content)
        _write(code, hashlib.sha256(content).hexdigest().encode())
        code.replace(_digest_of(library))
        built.replace(library)  # last: without its digest it would be built anew


def _intact(library: Path) -> bool:
    """Whether a library is there, whole and as it was built: loading half of one is a crash."""
    try:
        expected = _digest_of(library).read_text("ascii").strip()
        return hashlib.sha256(library.read_bytes()).hexdigest() == expected
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _digest_of(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _write(path: Path, content: bytes) -> None:
    """To the disk, not only to the system's memory."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise CompilerError(f"{command[0]} does not run: {error}") from error
