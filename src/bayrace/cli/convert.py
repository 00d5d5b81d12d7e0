"""`bayrace convert`: structures from files of one kind to a file of another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bayrace.cli.common import Debug, Overwrite, console, friendly, refuse_existing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("convert")(friendly(convert))


def convert(
    files: Annotated[
        list[str], typer.Argument(help="Files to read, as in training, and the file to write.")
    ],
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Write structures to another kind of file: .aselmdb, .db or .xyz.

    Structures are read and written one at a time, with their labels and all that is known of
    them. Data sets in .aselmdb (LMDB, the format of OMat24 and OMol25) may be larger than memory.

    \b
    Examples:
      bayrace convert data.xyz data.aselmdb
      bayrace convert "part-*.xyz" more.traj all.aselmdb
      bayrace convert omat.aselmdb@:1000 some.xyz
    """
    del debug  # the decorator reads it
    from bayrace.cli.progress import HEARTBEAT
    from bayrace.data import convert as writing

    if len(files) < 2:
        raise ValueError(f"{' '.join(files)}: name the file to write after those to read")
    *sources, target = files
    refuse_existing(Path(target), sources, overwrite=overwrite)
    out, printed, begin = console(), time.monotonic(), time.monotonic()

    def progress(done: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= HEARTBEAT:
            printed = time.monotonic()
            out.print(f"{done} structures, {done / (printed - begin):.0f} a second")

    count = writing.convert(sources, Path(target), progress=progress)
    out.print(f"{count} structures: {target}")
