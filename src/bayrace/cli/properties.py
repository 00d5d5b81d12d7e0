"""`bayrace properties`, `bayrace relax` and `bayrace neb`: derived values as mean ± σ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from bayrace.cli.common import (
    Debug,
    Device,
    ModelFile,
    Overwrite,
    console,
    friendly,
    plural,
    refuse_existing,
)
from bayrace.cli.rules import read_known, read_one
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bayrace.deploy.properties import Property

MaxForce = Annotated[float, typer.Option(help="Relaxed where no force is larger, eV/Å.")]
Steps = Annotated[int, typer.Option(min=1, help="Most steps of a relaxation.")]
Json = Annotated[Path | None, typer.Option("--output", "-o", help="Also write this JSON file.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("relax")(friendly(relax))
    app.command("properties")(friendly(properties))
    app.command("neb")(friendly(neb))


def relax(
    model: ModelFile,
    files: Annotated[list[str], typer.Argument(help="Structures; globs, file.xyz@:100.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Extended XYZ file to write.")],
    cell: Annotated[bool, typer.Option("--cell", help="Relax the cell too.")] = False,
    max_force: MaxForce = 0.01,
    steps: Steps = 500,
    overwrite: Overwrite = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Relax structures, and tell the energy of each minimum with its σ.

    \b
    Examples:
      bayrace relax model.bayrace start.xyz -o relaxed.xyz
      bayrace relax model.bayrace 'crystals/*.cif' --cell -o relaxed.xyz
    """
    del debug
    from bayrace.deploy.relax import relax_all
    from bayrace.potential.potential import Potential

    refuse_existing(output, files, overwrite=overwrite)
    tune_process()
    potential = Potential.load(model, device=device)
    found = relax_all(
        potential,
        read_known(files, potential),
        output,
        max_force=max_force,
        steps=steps,
        cell=cell,
    )
    table = Table("structure", "energy, eV", "± σ", "steps", "largest force", box=None)
    for each in found:
        row = (f"{each.energy:.4f}", f"{each.std:.4f}", str(each.steps), f"{each.max_force:.2g}")
        table.add_row(each.formula, *row)
    console().print(table)
    open_ends = sum(each.max_force > max_force for each in found)
    late = f"; {open_ends} not relaxed after {steps} steps" if open_ends else ""
    console().print(f"{plural(len(found), 'structure')}: {output}{late}")


def properties(
    model: ModelFile,
    structure: Annotated[str, typer.Argument(help="A crystal or a molecule; file.xyz@5.")],
    what: Annotated[
        str,
        typer.Option(
            help="What to compute: eos, elastic, phonons (crystals), vibrations (molecules)."
        ),
    ] = "eos,elastic",
    supercell: Annotated[
        str, typer.Option(help="phonons: repetitions of the cell in which atoms are displaced.")
    ] = "2,2,2",
    max_force: MaxForce = 0.001,
    steps: Steps = 500,
    samples: Annotated[
        int | None,
        typer.Option(min=2, help="Weight samples; default: all of an ensemble, else 8."),
    ] = None,
    output: Json = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Lattice, stiffness and vibrations of a structure, each value as mean ± σ.

    Every member of the posterior relaxes the structure and computes the values by itself; σ is
    their spread, times the calibration's factor for forces. Every posterior but point has members;
    those of the default and other closed forms are drawn.

    \b
    Examples:
      bayrace properties model.bayrace silicon.cif
      bayrace properties model.bayrace silicon.cif --what eos,elastic,phonons --supercell 3,3,3
      bayrace properties model.bayrace ethanol.xyz --what vibrations -o modes.json
    """
    del debug
    from bayrace.deploy import properties as derived
    from bayrace.deploy.crystals import Relaxation
    from bayrace.potential.potential import Potential

    settings = derived.PropertySettings(
        kinds=tuple(kind.strip() for kind in what.split(",")),
        supercell=_three(supercell),
        relaxation=Relaxation(max_force, steps),
        samples=samples,
    )
    if output is not None:
        refuse_existing(output, [structure], overwrite=overwrite)
    tune_process()
    potential = Potential.load(model, device=device)
    atoms = read_one(structure, potential)
    found = derived.properties(potential, atoms, settings)
    _show(found, output)


def neb(
    model: ModelFile,
    first: Annotated[str, typer.Argument(help="Structure at one end; file.xyz@0.")],
    last: Annotated[str, typer.Argument(help="Structure at the other end, same order of atoms.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Extended XYZ file of the path.")],
    images: Annotated[int, typer.Option(min=3, help="Structures, both ends included.")] = 7,
    max_force: MaxForce = 0.02,
    steps: Steps = 500,
    overwrite: Overwrite = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """The minimum energy path between two structures, with σ of the energy along it.

    Both ends are relaxed, then a climbing nudged elastic band. Energies are relative to the first
    end, and so is σ: what the members agree on at both ends does not count.

    \b
    Example:
      bayrace neb model.bayrace reactant.xyz product.xyz -o path.xyz
    """
    del debug
    from bayrace.deploy.crystals import Relaxation
    from bayrace.deploy.properties import path
    from bayrace.deploy.relax import write_path
    from bayrace.potential.potential import Potential

    refuse_existing(output, [first, last], overwrite=overwrite)
    tune_process()
    potential = Potential.load(model, device=device)
    ends = read_one(first, potential), read_one(last, potential)
    found = path(potential, ends, images=images, relaxation=Relaxation(max_force, steps))
    write_path(found, output)
    table = Table("image", "energy, eV", "± σ", box=None)
    for number, (energy, std) in enumerate(zip(found.energies, found.stds, strict=True)):
        table.add_row(str(number), f"{energy:.4f}", f"{std:.4f}")
    console().print(table)
    console().print(f"barrier {found.barrier.mean:.4f} ± {found.barrier.std:.4f} eV: {output}")


def _three(text: str) -> tuple[int, int, int]:
    try:
        one, two, three = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--supercell {text}: give three counts, such as 2,2,2") from None
    return one, two, three


def _show(found: Sequence[Property], output: Path | None) -> None:
    table = Table("property", "mean", "± σ", "unit", box=None)
    for each in found:
        table.add_row(each.name, f"{each.mean:.4f}", f"{each.std:.4f}", each.unit)
    console().print(table)
    if output is not None:
        rows = [vars(each) for each in found]
        output.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
