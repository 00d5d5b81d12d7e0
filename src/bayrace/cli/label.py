"""`bayrace label`: energies, forces and stress from a reference method, in parallel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayrace.cli.cluster import Scheduler
from bayrace.cli.common import Debug, console, friendly, plural
from bayrace.cli.methods import Arguments, listing, parse_arguments

if TYPE_CHECKING:
    from ase import Atoms

    from bayrace.data.frame import Frame
    from bayrace.label.label import Labelling, LabelSettings
    from bayrace.label.oracle import Oracle

FAILED = 1  # exit code where some structures have no label


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("label", cls=listing("bayrace.label.oracles:ORACLES"))(friendly(label))


def label(
    files: Annotated[list[str], typer.Argument(help="Structures; globs, file.xyz@:100.")],
    oracle: Annotated[
        str,
        typer.Option(
            help="A name from the list above; an ASE calculator, tblite.ase:TBLite; a .bayrace; a "
            "YAML file."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Extended XYZ file to write.")],
    argument: Arguments = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Calculations at a time, on this machine.")
    ] = 1,
    scheduler: Scheduler = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each calculation.")] = 1,
    retries: Annotated[
        int, typer.Option(min=0, help="Further calls for a structure whose calculation failed.")
    ] = 2,
    timeout: Annotated[
        str | None, typer.Option(help="Longest time of a calculation: 90 (seconds), 30m, 2h.")
    ] = None,
    max_force: Annotated[float, typer.Option(help="A larger force is a failure, eV/Å.")] = 100.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier labelling ended.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Label structures with a reference method; labels in the input are replaced.

    Every finished label goes at once to an SQLite file beside the output (labelled.sqlite for
    labelled.xyz). After an interruption, however brutal, --resume continues without computing
    anything twice. Structures that fail for good are reported and left out of the output.

    \b
    Oracles:
      {methods}

    \b
    Examples:
      bayrace label frames.xyz --oracle gfn2 -o labelled.xyz --workers 2
      bayrace label frames.xyz --oracle dft -a functional=b3lyp -a basis=def2-tzvp -o labelled.xyz
      bayrace label frames.xyz --oracle tblite.ase:TBLite -a method=GFN1-xTB -o labelled.xyz
      bayrace label frames.xyz --oracle vasp.yaml -o labelled.xyz --timeout 2h --resume
    """
    del debug
    from bayrace.config import parse_duration
    from bayrace.config.oracle import make_oracle, parse_oracle
    from bayrace.label.files import write_labelled
    from bayrace.label.label import LabelSettings

    structures, frames = read(files, output)
    settings = LabelSettings(
        workers=workers,
        scheduler=scheduler,
        threads=threads,
        retries=retries,
        timeout=None if timeout is None else parse_duration(timeout),
        max_force=max_force,
    )
    named = parse_oracle(oracle, parse_arguments(argument or []))
    chosen = make_oracle(named, timeout=settings.timeout)
    store = output.with_suffix(".sqlite")
    if store.exists() and not resume:
        raise ValueError(f"{store}: exists; go on with it by --resume, or remove it")
    result = run(frames, chosen, store, settings)
    write_labelled(output, structures, result)
    report(result, output, store)


def read(files: list[str], output: Path) -> tuple[list[Atoms], list[Frame]]:
    """The structures as they are, and as frames without labels."""
    from bayrace.data.check import check_frame
    from bayrace.data.read import DataError, frame_from_atoms, iterate_atoms

    if any(Path(file).resolve() == output.resolve() for file in files):
        raise DataError(f"{output}: is also an input; write to another file")
    structures, frames = [], []
    for source, index, atoms in iterate_atoms(files):
        frame = frame_from_atoms(atoms, keys=None, source=source, index=index)
        check_frame(frame)
        structures.append(atoms)
        frames.append(frame)
    return structures, frames


def run(frames: list[Frame], oracle: Oracle, store: Path, settings: LabelSettings) -> Labelling:
    """Label with a progress bar on a terminal, or a line now and then."""
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from bayrace.label.label import Progress, label_frames

    out = console(stderr=True)
    out.print(f"{plural(len(frames), 'structure')}, {oracle.method}", markup=False)
    columns = (
        TextColumn("labels"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed, {task.fields[retried]} retried"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=len(frames), failed=0, retried=0)
        spoken = time.monotonic()

        def tell(now: Progress) -> None:
            nonlocal spoken
            bar.update(
                task, completed=now.done, total=now.total, failed=now.failed, retried=now.retried
            )
            if not out.is_terminal and time.monotonic() - spoken > _EVERY:
                out.print(f"{now.done}/{now.total} labels, {now.failed} failed")
                spoken = time.monotonic()

        return label_frames(frames, oracle, store=store, settings=settings, progress=tell)


_EVERY = 30.0  # s between lines


def report(result: Labelling, output: Path, store: Path) -> None:
    """What came of it; exit code 1 where labels are missing."""
    count = len(result.labelled)
    console().print(f"{plural(count, 'labelled structure')}: {output}", markup=False)
    if not result.failures:
        return
    out = console(stderr=True)
    for error in list(result.failures.values())[:_SHOWN]:
        out.print(f"failed: {error}", markup=False)
    hidden = len(result.failures) - _SHOWN
    more = f" ({hidden} more are in {store})" if hidden > 0 else ""
    missing = plural(len(result.failures), "structure")
    out.print(f"no label for {missing}{more}; --resume --retries n tries again", markup=False)
    raise typer.Exit(FAILED)


_SHOWN = 10  # errors
