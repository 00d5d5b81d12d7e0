"""`bayrace adopt`: give a pretrained network of another package σ for your data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bayrace.cli.common import Debug, console, friendly
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bayrace.potential.potential import Potential
    from bayrace.workflow.adopt import Growth, Shift


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("adopt")(friendly(adopt))


def adopt(
    weights: Annotated[
        str,
        typer.Argument(
            help="7net-0, 7net-l3i5, chgnet, chgnet-r2scan, or a file: mace:medium.model, "
            "sevennet:checkpoint.pth, chgnet:weights.pth.tar."
        ),
    ],
    data: Annotated[
        list[str], typer.Option(help="Labelled structures; globs, file.xyz@:100; repeatable.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file of the potential to write.")
    ],
    valid: Annotated[
        list[str] | None,
        typer.Option(
            help="Labelled structures that calibrate σ; default: 30 % of --data, at random. Give "
            "others where those are neighbours in time."
        ),
    ] = None,
    posterior: Annotated[
        str, typer.Option(help="Posterior to fit: distance or llpr.")
    ] = "distance",
    shift: Annotated[
        str,
        typer.Option(
            help="Energies of the elements between the network's zero and that of the labels: fit, "
            "none, or auto, which fits them where they explain most of the error."
        ),
    ] = "auto",
    growth: Annotated[
        str,
        typer.Option(
            help="How errors grow away from your data: a power of the posterior's σ, or auto, the "
            "one that errors of the farther half of your structures follow."
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits.")] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="Change a key, as in a configuration: -s data.energy_key=dft_energy, "
            "-s calibrate=conformal; repeatable.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Adopt a pretrained SevenNet, CHGNet or MACE: its energies and forces, with σ for your data.

    Nothing is trained, and the weights stay where they are; the file names them.

    \b
    Examples:
      bayrace adopt 7net-0 --data mine.xyz -o mine.bayrace
      bayrace adopt chgnet --data "runs/*.xyz" --valid others.xyz -o mine.bayrace
      bayrace adopt mace:medium.model --data mine.xyz --posterior llpr -o mine.bayrace
    """
    del debug
    from bayrace.cli.train import counting
    from bayrace.workflow.adopt import VALID
    from bayrace.workflow.adopt import adopt as run

    tune_process()
    out = console()
    if shift not in ("auto", "fit", "none"):
        raise ValueError(f"--shift {shift}: use auto, fit or none")
    power: Growth = "auto" if growth == "auto" else _power(growth)
    potential = run(
        weights,
        data,
        valid=valid or VALID,
        posterior=posterior,
        shift=cast("Shift", shift),
        growth=power,
        overrides=[f"seed={seed}", *(change or [])],
        progress=counting(out, posterior),
    )
    potential.save(output)
    for line in _lines(potential, weights):
        out.print(line)
    out.print(f"potential: {output}")


def _power(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 4:
        raise ValueError(f"--growth {text}: use auto, or a power above 0 and at most 4")
    return value


def _lines(potential: Potential, weights: str) -> Iterator[str]:
    """What was found."""
    from bayrace.calibrate.fit import GROWTH
    from bayrace.data.frame import symbols_of

    found, name = potential.statistics, potential.posterior.name
    yield (
        f"{weights}, {symbols_of(potential.elements)}: {name} fitted to "
        f"{found['train_frames']} structures, calibrated on {found['valid_frames']} others"
    )
    error = 1000 * found["energy_rmse_per_atom"]
    zero = "that of the labels" if any(potential.references.values()) else "the network's own"
    yield f"energy zero: {zero}; error of its energies {error:.3g} meV/atom"
    yield f"errors grow with the power {found[GROWTH]['energy']:.2g} of what {name} says"
    if potential.calibration is None:
        yield "σ is not calibrated"
