"""The folder of a run: the names in it, whether it may be written to, and clearing it.

A run writes config.yaml (every value written out), history.jsonl, last.ckpt, best.ckpt, and in the
end model.bayrace and, where there is test data, test.json. A posterior that trains on (SWAG) does
so in a folder of its own name inside.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bayrace.config import Config, ConfigError
from bayrace.posterior.swag import SNAPSHOTS, Swag
from bayrace.train.checkpoint import BEST, LAST
from bayrace.train.state import HISTORY

CONFIG, MODEL, TEST = "config.yaml", "model.bayrace", "test.json"
POINT = "point.bayrace"  # the network alone, where a posterior was fitted to it
ENSEMBLE = "ensemble.json"  # marks the folder of an ensemble, whose members are in member-0, ...
_FILES = (CONFIG, HISTORY, MODEL, POINT, TEST, LAST, BEST, ENSEMBLE)


def check_folder(config: Config, *, resume: bool, overwrite: bool) -> None:
    """Refuse to write over an earlier run, or to resume where there is none."""
    folder = Path(config.output)
    if folder.is_file():
        raise ConfigError(f"output: {folder} is a file; name a folder")
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
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"output: {folder} exists and is not empty; continue that run with --resume, replace "
            "it with --overwrite, or choose another folder with -s output=..."
        )


def clear_folder(folder: Path) -> None:
    """Remove the files of an earlier run or ensemble, and nothing else."""
    if (folder / ENSEMBLE).is_file():
        for member in folder.glob("member-*"):
            _clear_inner(member)
    _clear_inner(folder / Swag.name)
    for name in _FILES:
        for path in (folder / name, folder / f".{name}.tmp"):  # the latter after kill -9
            path.unlink(missing_ok=True)


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
