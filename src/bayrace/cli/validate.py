"""`bayrace validate`: what the data hold, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayrace.cli.common import Debug, console, friendly

if TYPE_CHECKING:
    from bayrace.data.check import DataReport, LabelNeeds
    from bayrace.data.read import Frame, LabelKeys
    from bayrace.data.summary import Range, SplitReport

PROBLEMS = 1  # exit code
_SHOWN = 10


_KEY_HELP = "Name of the {} in the files; default: that of ASE."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(friendly(validate))


def validate(
    files: Annotated[list[str] | None, typer.Argument(help="Data files; globs work.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Check the data of this configuration instead.")
    ] = None,
    energy_key: Annotated[str | None, typer.Option(help=_KEY_HELP.format("energy"))] = None,
    forces_key: Annotated[str | None, typer.Option(help=_KEY_HELP.format("forces"))] = None,
    stress_key: Annotated[str | None, typer.Option(help=_KEY_HELP.format("stress"))] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show all problems and warnings, not {_SHOWN} of a kind.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Report what data files hold; exit code 1 if something cannot be used.

    Outliers and duplicates are warnings.

    \b
    Examples:
      bayrace validate train.xyz test.xyz
      bayrace validate --config config.yaml
      bayrace validate train.xyz --all          every problem, outlier and repetition
    """
    del debug
    if bool(files) == (config is not None):
        raise ValueError("give data files, or --config with a configuration that names them")
    from bayrace.data.check import report
    from bayrace.data.doubts import unit_doubts
    from bayrace.data.read import LabelKeys
    from bayrace.data.succession import succession_doubts, tenth_apart

    out = console()
    keys = LabelKeys(energy_key, forces_key, stress_key, None, None)
    splits, found = from_config(config) if config else from_files(files or [], keys)
    most = sys.maxsize if everything else _SHOWN
    print_report(report(splits), out, most=most)
    succession = [
        doubt for frames in splits.values() for doubt in succession_doubts(*tenth_apart(frames))
    ]
    for doubt in [*unit_doubts(splits), *(succession if files else [])]:
        out.print(f"[yellow]doubt:[/] {escape(str(doubt))}", markup=True)
    print_lines("problem", found, out, most=most, colour="red")
    if found:
        raise typer.Exit(PROBLEMS)
    out.print("[green]no problems[/]", markup=True)


Found = tuple[dict[str, list["Frame"]], list[str]]


def from_files(files: Sequence[str], keys: LabelKeys) -> Found:
    """Frames of each file, and every problem."""
    from bayrace.config import LossConfig
    from bayrace.workflow.prepare import label_needs

    return check({file: [file] for file in files}, keys, label_needs(LossConfig()))


def from_config(path: Path) -> Found:
    """Frames of each split of a configuration, and every problem."""
    from bayrace.config import load_config
    from bayrace.config.build import label_keys
    from bayrace.workflow.prepare import drawn, label_needs

    config = load_config(path)
    data = config.data
    named = {"train": data.train} | {f"test {name}": paths for name, paths in data.test.items()}
    if isinstance(data.valid, tuple):
        named["valid"] = data.valid
    splits, found = check(named, label_keys(data, config.target), label_needs(config.loss))
    if not isinstance(data.valid, tuple) and len(splits.get("train", [])) > 1:
        parts = drawn(splits["train"], config, valid=data.valid)
        splits["train"], splits["valid"] = parts
    return splits, found


def check(named: Mapping[str, Sequence[str]], keys: LabelKeys, needs: LabelNeeds) -> Found:
    """Read named sets of files; a set that cannot be read is a problem."""
    from bayrace.data.check import problems
    from bayrace.data.read import DataError, read_frames

    splits: dict[str, list[Frame]] = {}
    found: list[str] = []
    for name, paths in named.items():
        try:
            frames = read_frames(list(paths), keys=keys, config_weights={}, check=False)
        except DataError as error:
            found.append(str(error))
            continue
        bad = problems(frames, need_forces=False)
        found += bad
        if not bad:
            splits[name] = frames
    everything = [frame for frames in splits.values() for frame in frames]
    return splits, found + (problems(everything, **needs) if everything else [])


def print_lines(
    title: str, lines: Sequence[str], out: Console, *, most: int, colour: str = "yellow"
) -> None:
    """Lines with a coloured title, up to `most` of them."""
    for line in lines[:most]:
        out.print(f"[{colour}]{title}:[/] {escape(line)}", markup=True)
    if len(lines) > most:
        more = f"and {len(lines) - most} more; --all shows them"
        out.print(f"[{colour}]{title}:[/] {more}", markup=True)


def print_report(report: DataReport, out: Console, *, most: int = _SHOWN) -> None:
    """Counts and ranges of each split, then warnings."""
    for part in report.splits:
        out.print(split_table(part))
    outliers = [f"{each.frame}: {each.remark} ({each.value:.3g})" for each in report.outliers]
    pairs = [
        f"{each.first} and {each.second}"
        + (f" (in {each.first_split} and {each.second_split})" if each.across else "")
        for each in report.duplicates
    ]
    for title, lines in (("outlier", outliers), ("same geometry", pairs)):
        print_lines(title, lines, out, most=most)


def split_table(part: SplitReport) -> Table:
    """One split as a table of two columns."""
    table = Table(show_header=False, box=None, title=part.name, title_justify="left")
    rows = {
        "structures": str(part.frames),
        "atoms": f"{part.atoms}: {_counts(part.elements)}",
        "atoms per structure": _range(part.atoms_per_frame),
        "energy per atom (eV)": _range(part.energy_per_atom),
        "force norm (eV/Å)": _range(part.force),
        "force rms (eV/Å)": "–" if part.force_rms is None else f"{part.force_rms:.4g}",
        "stress (eV/Å³)": _range(part.stress),
        "shortest distances (Å)": ", ".join(f"{k} {v:.3f}" for k, v in part.shortest.items())
        or "–",
        "periodicity": _counts(part.periodic),
        "config types": _counts(part.config_types),
        "without label": _counts(part.missing),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in values.items()) or "–"


def _range(value: Range | None) -> str:
    if value is None:
        return "–"
    return f"{value.low:.6g} to {value.high:.6g}, mean {value.mean:.6g}"
