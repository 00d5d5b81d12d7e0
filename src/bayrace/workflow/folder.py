"""The folder of a run: the names in it, whether it may be written to, and clearing it.

A run writes config.yaml (every value written out), history.jsonl, last.ckpt, best.ckpt, and in the
end model.bayrace and, where there is test data, test.json. A posterior that trains on (SWAG, IVON)
does so in a folder of its own name inside.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bayrace.config import Config, ConfigError
from bayrace.core.files import remove_temporaries
from bayrace.data.frame import DataError
from bayrace.posterior.ivon import IvonOptions
from bayrace.posterior.swag import SNAPSHOTS, SwagOptions
from bayrace.train.checkpoint import BEST, LAST
from bayrace.train.state import HISTORY

CONFIG, MODEL, TEST = "config.yaml", "model.bayrace", "test.json"
POINT = "point.bayrace"  # the network alone, where a posterior was fitted to it
ENSEMBLE = "ensemble.json"  # marks the folder of an ensemble, whose members are in member-0, ...
SHARED = "shared.data"  # of the members of an ensemble, while they are trained
LOCK = ".lock"  # held by the process that works in a folder, and gone with it
_FILES = (CONFIG, HISTORY, MODEL, POINT, TEST, LAST, BEST, ENSEMBLE, SHARED)


def check_folder(config: Config, *, resume: bool, overwrite: bool) -> None:
    """Refuse to write over an earlier run, or to resume where there is none."""
    folder = Path(config.output)
    existing = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    if not existing.is_dir():
        what = "a file" if existing.is_file() else "no folder"
        raise ConfigError(f"output: {existing} is {what}; name a folder")
    if resume:
        if (folder / ENSEMBLE).is_file():
            raise ConfigError(
                f"output: {folder} holds an ensemble; resume it with `bayrace train {folder} "
                "--resume`, or bayrace.workflow.ensemble.train_members"
            )
        if not (folder / LAST).is_file():
            raise ConfigError(
                f"output: {folder} has no {LAST} to resume from; start without --resume"
            )
        return
    if not overwrite and holds_files(folder):
        raise ConfigError(
            f"output: {folder} exists and is not empty; continue that run with --resume, replace "
            "it with --overwrite, or choose another folder with -s output=..."
        )


def holds_files(folder: Path) -> bool:
    """Whether there is anything in a folder but the lock of whoever asks."""
    return folder.is_dir() and any(path.name != LOCK for path in folder.iterdir())


@contextmanager
def locked(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be.

    `patience` is how many seconds to wait for another that is about to end. What was made for the
    lock alone is gone afterwards.
    """
    made = not folder.is_dir()
    path, end = folder / LOCK, time.monotonic() + patience
    while (file := _lock(path)) is None:
        if time.monotonic() >= end:
            raise DataError(
                f"{folder}: another process works in it; wait for its end, or choose another "
                "folder with -s output=..."
            )
        time.sleep(_POLL)
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # still locked, so that nobody holds it but us
            if made:
                with suppress(OSError):
                    folder.rmdir()


def held(folder: Path) -> bool:
    """Whether a process works in a folder now; a file that a killed one left does not count."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


_POLL = 0.1  # s between two looks at a lock


def _lock(path: Path) -> IO[str] | None:
    """The lock, open and held; None if another process holds it."""
    file = _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:  # of a disk that knows no locks
        file.close()
        raise OSError(error.errno, error.strerror, str(path)) from error
    file.close()  # held, or removed by the one who held it between our opening and our locking
    return None


def _opened(path: Path) -> IO[str]:
    """The file of a lock, whose folder the process before may remove at any moment."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("w")
        except (FileNotFoundError, FileExistsError):
            if not left or path.parent.is_file():
                raise
    raise AssertionError


_ATTEMPTS = 100  # after which it was not another process


def clear_folder(folder: Path) -> None:
    """Remove the files of an earlier run or ensemble, and nothing else."""
    if (folder / ENSEMBLE).is_file():
        for member in folder.glob("member-*"):
            _clear_inner(member)
    for method in (SwagOptions, IvonOptions):
        _clear_inner(folder / method.name)
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left."""
    for name in _FILES:
        remove_temporaries(folder / name)


def _clear_inner(folder: Path) -> None:
    """Remove a folder inside that of a run, unless it holds files that are not ours."""
    if not folder.is_dir():
        return
    for path in (folder / SNAPSHOTS).glob("*.ckpt"):
        path.unlink()
    clear_folder(folder)
    for place in (folder / SNAPSHOTS, folder):
        with suppress(OSError):
            place.rmdir()
