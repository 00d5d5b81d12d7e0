"""`bayrace hop`: surface hopping on learnt electronic states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bayrace.cli.common import Debug, console, friendly
from bayrace.cli.rules import Diabatic, MaxForceError, StateModels

if TYPE_CHECKING:
    from bayrace.workflow.hop import SwarmResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("hop")(friendly(hop))


def hop(
    models: StateModels,
    start: Annotated[
        str,
        typer.Option(
            help="Structure near a minimum, about which trajectories vibrate; or one for each "
            "trajectory, with momenta."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of results; what it lacks is run.")
    ],
    diabatic: Diabatic = False,
    method: Annotated[
        Literal["fssh", "shxf", "baeck-an", "landau-zener"] | None,
        typer.Option(
            help="Fewest switches; with decoherence by exact factorisation; with couplings from "
            "the curvature of gaps; or hops where gaps are least. Default: shxf with --diabatic, "
            "else landau-zener."
        ),
    ] = None,
    state: Annotated[
        int, typer.Option(min=0, help="State that all trajectories begin in; 0 is the lowest.")
    ] = 1,
    trajectories: Annotated[int, typer.Option(min=1, help="Number of trajectories.")] = 100,
    time: Annotated[float, typer.Option(help="Length of each trajectory, fs.")] = 100.0,
    timestep: Annotated[float, typer.Option(help="Time step of the nuclei, fs.")] = 0.25,
    substeps: Annotated[
        int,
        typer.Option(
            min=1, help="Steps of the electronic amplitudes in one time step of the nuclei."
        ),
    ] = 20,
    decoherence: Annotated[
        Literal["energy", "none"],
        typer.Option(
            help="Decoherence with --method fssh or baeck-an: by the energy gap, or none."
        ),
    ] = "energy",
    width: Annotated[
        float, typer.Option(help="Width of wave packets with --method shxf, Å.")
    ] = 0.053,
    frustrated: Annotated[
        Literal["keep", "reverse"],
        typer.Option(
            help="What becomes of the velocity along the coupling where a hop lacks energy."
        ),
    ] = "keep",
    temperature: Annotated[
        float, typer.Option(help="Temperature of the vibrations, K; 0: ground state.")
    ] = 0.0,
    max_force_error: MaxForceError = 1.0,
    probability: Annotated[
        float,
        typer.Option(
            help="Stop a trajectory where a larger force error is likelier than this, 0 to 1."
        ),
    ] = 0.5,
    rule: Annotated[
        bool, typer.Option("--rule/--no-rule", help="Whether uncertain forces stop a trajectory.")
    ] = True,
    max_drift: Annotated[
        float, typer.Option(help="Stop a trajectory at this drift of its energy, eV.")
    ] = 0.5,
    dihedral: Annotated[
        str | None, typer.Option(help="Four atoms, counted from 0, as 2,0,1,4: a figure of it.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Time steps between records.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 1,
    group: Annotated[int, typer.Option(min=1, help="Trajectories that move as a batch.")] = 25,
    seed: Annotated[int, typer.Option(min=0, help="Seed of starts and hops.")] = 0,
    debug: Debug = False,
) -> None:
    """Let a swarm of trajectories hop between electronic states, and count who is where.

    Writes populations.json (shares of trajectories with standard errors), populations.png, files of
    trajectories, and with --dihedral an angle against time. Trajectories whose forces cannot be
    trusted are stopped and counted. The same command again continues what was interrupted.

    \b
    Examples:
      bayrace hop mean.bayrace gap.bayrace --start minimum.xyz -o runs/hop --time 60
      bayrace hop pps.bayrace oss.bayrace delta2.bayrace --diabatic --start minimum.xyz -o runs/shxf
      bayrace hop mean.bayrace gap.bayrace --start minimum.xyz -o out --dihedral 2,0,1,4 --workers 2
    """
    del debug
    from bayrace.potential.states import States
    from bayrace.simulate.hopping.learnt import HBAR
    from bayrace.simulate.hopping.starts import starts
    from bayrace.simulate.hopping.swarm import HopSettings
    from bayrace.simulate.stop import StopRule
    from bayrace.workflow.hop import SwarmPlan, run_swarm

    atoms = None if dihedral is None else four(dihedral)
    states = States.load(models, diabatic=diabatic)
    if state >= states.count:
        raise ValueError(f"--state {state}: there are {states.count} states, counted from 0")
    chosen = method or ("shxf" if diabatic else "landau-zener")
    settings = HopSettings(
        method=chosen,
        timestep=timestep,
        steps=round(time / timestep),
        hbar=HBAR,
        substeps=substeps,
        decoherence=decoherence,
        width=width,
        frustrated=frustrated,
        direction="velocity" if chosen in ("baeck-an", "landau-zener") else "coupling",
        max_drift=max_drift,
        seed=seed,
    )
    frame, positions, velocities = starts(
        states, start, trajectories=trajectories, temperature=temperature, seed=seed
    )
    plan = SwarmPlan(
        models=tuple(str(path.resolve()) for path in models),
        diabatic=diabatic,
        frame=frame,
        positions=positions,
        velocities=velocities,
        state=state,
        settings=settings,
        rule=StopRule(max_force_error, probability) if rule else None,
        record_every=every,
    )
    out = console()
    result = run_swarm(
        plan,
        output,
        workers=workers,
        group=group,
        done=lambda finished, total: out.print(f"{finished} of {total} groups"),
    )
    write(result, output, atoms)
    for line in lines(result):
        out.print(line)


def four(text: str) -> tuple[int, int, int, int]:
    """Four atoms from "2,0,1,4"."""
    try:
        a, b, c, d = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--dihedral {text}: give four atoms, counted from 0: 2,0,1,4") from None
    return a, b, c, d


def write(result: SwarmResult, folder: Path, atoms: tuple[int, int, int, int] | None) -> None:
    """Numbers and figures."""
    from bayrace.report import hopping
    from bayrace.report.figures import save

    shares, errors, mean = result.shares()
    told = {
        "time_fs": result.times.tolist(),
        "share": shares.tolist(),
        "standard_error": errors.tolist(),
        "electronic_population": mean.tolist(),
    }
    (folder / "populations.json").write_text(
        json.dumps(told | {"summary": result.summary()}) + "\n"
    )
    curves = hopping.Curves(result.times, shares, errors)
    save(hopping.populations({"": curves}), folder / "populations.png")
    if atoms is not None:
        angle = result.dihedral(atoms)
        name = "dihedral " + "–".join(str(atom) for atom in atoms)
        save(hopping.angles(result.times, angle, result.active, name=name), folder / "dihedral.png")


def lines(result: SwarmResult) -> list[str]:
    """What happened, in plain words."""
    shares, errors, _ = result.shares()
    said = result.summary()
    end = ", ".join(
        f"S{s} {share:.3f} ± {error:.3f}"
        for s, (share, error) in enumerate(zip(shares[-1], errors[-1], strict=True))
    )
    return [
        f"after {result.times[-1]:g} fs: {end}",
        f"{said['trajectories']} trajectories, {said['hops']} hops; "
        f"{said['stopped_by_uncertainty']} stopped by the uncertainty rule "
        f"({100 * said['share_stopped_by_uncertainty']:.0f} %), "
        f"{said['stopped_by_drift']} by their total energy",
        f"largest drift of the total energy: {said['largest_drift_eV']:.1e} eV",
    ]
