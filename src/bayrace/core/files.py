"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to, whose file takes the place of `path` when the block ends well.

    Readers and crashes see the old file or the new one. A link stays, and what it points to is
    replaced. What is no file, such as /dev/stdout or a pipe, is written to as it is.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    # A name of its own: two processes that write the same file must not share one.
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):  # of a disk that cannot be written to, the first error counts
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error  # a name they know
        raise
    if os.name == "posix":  # which alone can open a folder
        _sync(target.parent)  # makes the new name durable


def remove_temporaries(path: Path) -> None:
    """Remove what killed processes left of writing `path`; nobody may be writing it now."""
    target = Path(os.path.realpath(path))
    for left in list(target.parent.iterdir()) if target.parent.is_dir() else ():
        if left.name.startswith(f".{target.name}.") and left.name.endswith(".tmp"):
            left.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """To the disk, not only to the system's memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
