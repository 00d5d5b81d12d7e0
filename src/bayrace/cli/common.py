"""What the commands share: consoles, the options they repeat, and errors in plain words."""

from __future__ import annotations

import errno
import functools
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn

from bayrace.system.cores import share_cores

P = ParamSpec("P")

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:1.")]
EdgeBudget = Annotated[
    int, typer.Option(min=1, help="Edges (neighbour pairs) per batch: fewer need less memory.")
]
ModelFile = Annotated[Path, typer.Argument(help="A potential, as bayrace train writes it.")]
EnergyKey = Annotated[
    str | None, typer.Option(help="Name of the energy in the file; default: as in training.")
]
ForcesKey = Annotated[
    str | None, typer.Option(help="Name of the forces in the file; default: as in training.")
]
StressKey = Annotated[
    str | None, typer.Option(help="Name of the stress in the file; default: as in training.")
]

FAILED, INTERRUPTED = 2, 130
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]


def console(*, stderr: bool = False) -> Console:
    """A console for results, or for messages; files get wide lines that are never broken.

    Brackets are what they are, as in the name of a file: what has a colour says markup=True.
    """
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else 120
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not terminal,
        width=width,
    )


def refuse_existing(output: Path, inputs: Sequence[str], *, overwrite: bool) -> None:
    """Refuse to write over an input, or over any file without `overwrite`."""
    if any(Path(file).resolve() == output.resolve() for file in inputs):
        raise ValueError(f"{output}: is also an input; write to another file")
    if output.exists() and not overwrite:
        raise ValueError(f"{output}: exists; replace it with --overwrite, or name another file")


def refuse_missing(source: Path, command: str) -> None:
    """Refuse a configuration that is not there, whose template is in the help of the command."""
    if not source.exists():
        raise ValueError(
            f"{source}: no such file; `bayrace {command} --help` shows an example to start from"
        )


def friendly(command: Callable[P, None]) -> Callable[P, None]:
    """Turn the errors that users can cause into one red message and exit code 2."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
        share_cores()
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            _complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if not _expected(error):
                raise
            if kwargs.get("debug"):
                traceback.print_exc()
            _complain(_words(error))
            raise typer.Exit(FAILED) from None

    return guarded


def _expected(error: Exception) -> bool:
    """Whether the message of an error is written for users."""
    if isinstance(error, ValueError | OSError):  # Config-, Data-, Potential-, CheckpointError
        return True
    diverged = sys.modules.get("bayrace.train.diverged")  # do not import torch to find out
    return diverged is not None and isinstance(error, diverged.TrainingDiverged)


def _words(error: Exception) -> str:
    """The message of an error; those of the system with the file first, and what to do."""
    if not isinstance(error, OSError) or error.errno is None or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}{_REMEDIES.get(error.errno, '')}"


_REMEDIES = {
    errno.ENOTDIR: "; a part of this name is a file: name another folder",
    errno.EEXIST: "; name another folder",
    errno.ENAMETOOLONG: "; give a shorter name",
    errno.ENOLCK: "; write to another disk",
    errno.EOPNOTSUPP: "; write to another disk",
    errno.ENOSPC: "; make room there, or write to another disk",
    errno.EDQUOT: "; make room there, or write to another disk",
    errno.EROFS: "; name another folder",
    errno.EACCES: "; name a folder of yours, or change its permissions",
    errno.EPERM: "; name a folder of yours, or change its permissions",
}


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar beside the results on a terminal; elsewhere nothing, not even an empty line."""
    out = console(stderr=True)
    return Progress(*columns, console=out, transient=True, disable=not out.is_terminal)


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of what is done of a total, told by the function that it gives."""
    with progress_bar() as bar:
        task = bar.add_task(escape(what), total=total)
        yield lambda done: bar.update(task, completed=done)


def plural(count: int, what: str) -> str:
    """A count with its noun: 1 structure, 2 structures."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def warn(message: str, *, word: str = "warning") -> None:
    """A message beside the results, which stops nothing."""
    console(stderr=True).print(f"[yellow]{word}:[/] {escape(message)}", markup=True)


def _complain(message: str) -> None:
    console(stderr=True).print(f"[bold red]error:[/] [red]{escape(message)}[/]", markup=True)
