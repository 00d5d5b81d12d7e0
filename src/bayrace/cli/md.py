"""`bayrace md`: molecular dynamics that stops before it lies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from bayrace.cli.common import Debug, Device, ModelFile, console, friendly, warn
from bayrace.cli.rules import (
    GapLimit,
    MaxForceError,
    Pressure,
    PressureRelaxation,
    Probability,
    Timestep,
    UncertaintyEvery,
    make_rule,
)
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from bayrace.data.distances import Gap
    from bayrace.data.frame import Frame
    from bayrace.potential.potential import Potential
    from bayrace.simulate.dynamics import DynamicsSettings, Look
    from bayrace.simulate.stop import StopRule

STOPPED = 3  # exit code where the rule ended the run
_EVERY = 10.0  # s between lines where there is no terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("md")(friendly(md))


def md(
    model: ModelFile,
    start: Annotated[str, typer.Argument(help="A structure; of several, file.xyz@5.")],
    temperature: Annotated[float, typer.Option(help="Temperature, K.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps to simulate.")],
    ensemble: Annotated[
        Literal["nve", "nvt", "npt"], typer.Option(help="Thermodynamic ensemble.")
    ] = "nvt",
    timestep: Timestep = 0.5,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Trajectory: .traj (ASE) or .xyz.")
    ] = Path("md.traj"),
    every: Annotated[int, typer.Option(min=1, help="Steps between frames of the trajectory.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of velocities and thermostat.")] = 0,
    max_force_error: MaxForceError = 0.5,
    probability: Probability = 0.05,
    action: Annotated[
        Literal["stop", "warn", "record", "off"],
        typer.Option(
            help="What the stop rule does: end the run, warn, only record its P, nothing."
        ),
    ] = "stop",
    over_atoms: Annotated[
        Literal["any", "max"],
        typer.Option(help="Stop rule: an error on any atom, or on the worst alone."),
    ] = "any",
    gap: GapLimit = "auto",
    uncertainty_every: UncertaintyEvery = 1,
    thermostat: Annotated[
        Literal["langevin", "bussi"], typer.Option(help="Thermostat of --ensemble nvt.")
    ] = "langevin",
    friction: Annotated[
        float, typer.Option(help="Friction of --thermostat langevin, 1/fs.")
    ] = 0.01,
    relaxation: Annotated[
        float,
        typer.Option(
            help="Relaxation time of the temperature with --thermostat bussi or --ensemble npt, fs."
        ),
    ] = 100.0,
    barostat: Annotated[
        Literal["mtk", "berendsen"], typer.Option(help="Barostat of --ensemble npt.")
    ] = "mtk",
    pressure: Pressure = 0.0,
    pressure_relaxation: PressureRelaxation = 1000.0,
    compressibility: Annotated[
        float, typer.Option(help="Compressibility that --barostat berendsen assumes, 1/GPa.")
    ] = 0.5,
    bias: Annotated[
        float,
        typer.Option(help="Strength τ of dynamics on E − τ·σ, which seek what is not known yet."),
    ] = 0.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Run molecular dynamics, and stop where the forces can no longer be trusted.

    The rule: stop when P(|force error on any atom| > --max-force-error) > --probability, by the
    calibrated uncertainty. The frame that broke it is the last of the trajectory, and the exit code
    is 3. It also stops where two atoms come to a distance that the training data lack; --gap says
    how far off is too far.

    \b
    Examples:
      bayrace md model.bayrace start.xyz --temperature 300 --steps 10000
      bayrace md model.bayrace start.xyz --temperature 1000 --steps 20000 --max-force-error 0.3
      bayrace md model.bayrace bulk.xyz --temperature 300 --steps 5000 --ensemble npt -o npt.xyz
    """
    del debug
    from bayrace.data.batch import species_of
    from bayrace.models.noise import noise_spec_of
    from bayrace.potential.potential import Potential
    from bayrace.simulate.dynamics import DynamicsSettings

    settings = DynamicsSettings(
        ensemble=ensemble,
        temperature=temperature,
        steps=steps,
        timestep=timestep,
        thermostat=thermostat,
        friction=friction,
        relaxation=relaxation,
        barostat=barostat,
        pressure=pressure,
        pressure_relaxation=pressure_relaxation,
        compressibility=compressibility,
        bias=bias,
        uncertainty_every=uncertainty_every,
        seed=seed,
    )
    frame = read_start(start, output, overwrite=overwrite)
    tune_process()
    potential = Potential.load(model, device=device)
    species_of(frame, potential.elements)  # names the file where it has others
    rule = make_rule(
        potential,
        max_force_error=max_force_error,
        probability=probability,
        action=action,
        gap=gap,
        over_atoms=over_atoms,
    )
    if rule is not None and potential.posterior.name == "point":
        kind = noise_spec_of(potential.model).kind
        left = "no σ at all" if kind == "none" else "a σ of noise, which need not rise there"
        warn(
            "this potential does not model its ignorance of unknown structures "
            f"(posterior point) and has {left}; only distances that were never learnt can stop it. "
            "Give it one: bayrace fit MODEL --posterior distance"
        )
    if rule is not None and potential.calibration is None:
        warn(
            "this potential is not calibrated, so the stop rule trusts its raw uncertainty; "
            "calibrate it with bayrace calibrate"
        )
    run(potential, frame, settings, rule, output, every)


def read_start(start: str, output: Path, *, overwrite: bool) -> Frame:
    """The one structure to begin with."""
    from bayrace.data.read import DataError, frame_from_atoms, iterate_atoms

    if output.exists() and not overwrite:
        raise DataError(f"{output}: exists; give another output, or --overwrite")
    found = iterate_atoms(start)
    source, index, atoms = next(found)
    if next(found, None) is not None:
        raise DataError(f"{start}: holds several structures; choose one, such as {start}@0")
    return frame_from_atoms(atoms, keys=None, source=source, index=index)


def run(
    potential: Potential,
    start: Frame,
    settings: DynamicsSettings,
    rule: StopRule | None,
    output: Path,
    every: int,
) -> None:
    """Simulate, write the trajectory, and say how it went."""
    from bayrace.simulate.dynamics import simulate
    from bayrace.simulate.explore import describe, describe_gap
    from bayrace.simulate.trajectory import open_trajectory

    out, warned, frames = console(), 0, 0
    widest: tuple[int, Gap] | None = None
    with open_trajectory(output) as append, display(out, settings) as show:
        for look in simulate(potential, start, settings, rule=rule):
            ending = look.step == settings.steps
            if look.step % every == 0 or ending or look.broken:
                append(look.snapshot())
                frames += 1
            show(look)
            if look.gap is not None and (widest is None or look.gap.size > widest[1].size):
                widest = look.step, look.gap
            if look.broken and rule is not None:
                warned += 1
                if rule.action == "warn" and warned == 1:
                    show.say(f"warning: {describe(look, rule)}")
    show.summary(look, frames, output)
    if widest is not None:
        usual = potential.statistics.get("distance_gap")
        known = "" if usual is None else f" (usual in training: {usual:.3g} Å)"
        show.say(f"widest gap{known}: step {widest[0]}, {describe_gap(look.atoms, widest[1])}")
    if rule is None or not look.broken or rule.action != "stop":
        if warned and rule is not None:
            out.print(f"{warned} of the looks broke the rule; their frames are in {output}")
        return
    out.print(f"stopped: {describe(look, rule)}", markup=False)
    raise typer.Exit(STOPPED)


@contextmanager
def display(out: Console, settings: DynamicsSettings) -> Iterator[Display]:
    """A bar on a terminal, lines elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
    )
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        yield Display(out, settings, bar)


class Display:
    """Shows looks."""

    def __init__(self, out: Console, settings: DynamicsSettings, bar: object) -> None:
        from rich.progress import Progress

        assert isinstance(bar, Progress)
        self._out, self._settings, self._bar = out, settings, bar
        self._task = bar.add_task("", total=settings.steps, line="")
        self._begin = self._spoken = time.monotonic()

    def __call__(self, look: Look) -> None:
        """Show where it is."""
        self._bar.update(self._task, completed=look.step, line=self._line(look))
        if not self._out.is_terminal and time.monotonic() - self._spoken > _EVERY:
            self._spoken = time.monotonic()
            self.say(f"step {look.step}/{self._settings.steps}  {self._line(look)}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(line, markup=False)

    def summary(self, look: Look, frames: int, output: Path) -> None:
        """Print what was done."""
        seconds = time.monotonic() - self._begin
        self.say(
            f"{look.step} steps, {look.time / 1000:.4g} ps in {seconds:.1f} s "
            f"({1000 * seconds / max(look.step, 1):.2f} ms a step)  {self._line(look)}"
        )
        self.say(f"{frames} frames: {output}")

    def _line(self, look: Look) -> str:
        elapsed = max(time.monotonic() - self._begin, 1e-9)
        speed = look.time * 1e-6 / elapsed * 86400  # ns a day
        risk = ""
        if look.risk is not None and look.forces_std > 0:
            risk = f"  P {look.risk.probability:.2g}"
        return (
            f"{speed:.3g} ns/day  {look.temperature:.0f} K  E {look.energy:.3f} eV  "
            f"{_sigma('E', look.energy_std, 'meV')}  {_sigma('F', look.forces_std, 'meV/Å')}{risk}"
        )


def _sigma(name: str, value: float, unit: str) -> str:
    """A standard deviation, which is 0 or nan only where the potential has none."""
    from bayrace.report.document import short

    known = f"{short(1000 * value)} {unit}" if value > 0 else "not modelled"
    return f"σ_{name} {known}"
