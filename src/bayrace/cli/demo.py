"""`bayrace demo`: the whole way in a few minutes, on the ethanol data that come with bayrace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bayrace.cli.common import INTERRUPTED, Debug, console, friendly

if TYPE_CHECKING:
    from bayrace.config import Config
    from bayrace.data.frame import Frame
    from bayrace.evaluate.evaluation import Evaluation
    from bayrace.evaluate.judged import Judged, Role
    from bayrace.workflow.train import RunResult

KNOWN, HOT = "300 K (as trained)", "1000 K (never seen)"
TIMESTEP = 0.5  # fs


@dataclass
class Trajectory:
    """What was recorded on the way."""

    time: list[float] = field(default_factory=list)  # fs
    potential_energy: list[float] = field(default_factory=list)  # eV
    temperature: list[float] = field(default_factory=list)  # K
    force_spread: list[float] = field(default_factory=list)  # eV/Å, largest σ of any component
    seconds: float = 0.0  # it took


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(friendly(demo))


def demo(
    output: Annotated[Path, typer.Option(help="Folder for all files of the demo.")] = Path(
        "demo-output"
    ),
    max_time: Annotated[str, typer.Option(help="Time for training.")] = "3m",
    steps: Annotated[int, typer.Option(min=10, help="Steps of 0.5 fs of dynamics.")] = 2000,
    debug: Debug = False,
) -> None:
    """Train on ethanol, evaluate, run molecular dynamics, and write a report.

    \b
    Examples:
      bayrace demo
      bayrace demo --max-time 10m --output my-demo
    """
    del debug
    out = console()
    result = train_demo(output, max_time, out)
    result.potential.save(output / "model.bayrace")
    out.print(f"\n{verdict(*result.evaluations)}\n")
    trajectory = simulate(result, steps, out)
    page = write_page(output, result, trajectory)
    out.print(f"report: {page.resolve()}")


def demo_config(output: Path, max_time: str) -> Config:
    """What the demo trains."""
    from bayrace.config import make_config
    from bayrace.data.embedded import embedded

    raw = {
        "output": str(output / "run"),
        "data": {
            "train": [str(embedded("ethanol-train")), str(embedded("ethanol-atoms"))],
            "valid": str(embedded("ethanol-valid")),
            "test": {KNOWN: str(embedded("ethanol-test")), HOT: str(embedded("ethanol-hot"))},
        },
        "train": {
            "max_time": max_time,
            "max_epochs": 100_000,
            "threads": 1,  # two gain little on molecules this small and lose much on a busy machine
        },
    }
    return make_config(raw, source="demo")


def train_demo(output: Path, max_time: str, out: Console) -> RunResult:
    """Train afresh and print the errors on the test sets."""
    from bayrace.cli.train import run_training

    config = demo_config(output, max_time)
    result = run_training(config, out, resume=False, overwrite=True)
    if result.fit.reason == "interrupted":
        out.print(f"stopped; the model so far is in {result.folder}")
        raise typer.Exit(INTERRUPTED)
    return result


def verdict(known: Evaluation, hot: Evaluation) -> str:
    """Whether the uncertainty saw the hot structures coming, in three lines."""
    from bayrace.evaluate.metrics.ood import detections
    from bayrace.report.document import short

    def milli(value: float) -> str:
        return short(1000 * value, 2)

    lines = []
    for each in (known, hot):
        total = each.accuracy.total
        assert total.energy is not None
        assert total.forces is not None
        energy, forces = each.energy.spread() or 0.0, each.forces.spread() or 0.0
        lines.append(
            f"{each.name}: energies are wrong by {milli(total.energy.rmse)} meV (RMSE), the "
            f"model expected {milli(energy)}; forces are wrong by "
            f"{milli(total.forces.rmse)} meV/Å, the model expected {milli(forces)}"
        )
    found = detections(known.scores(), hot.scores())["energy_total"]
    if found is not None:
        lines.append(f"σ of the energy tells the two apart with an AUROC of {found.auroc:.2f}")
    return "\n".join(lines)


def simulate(result: RunResult, steps: int, out: Console) -> Trajectory:
    """Dynamics at 300 K from a training structure, with a progress bar."""
    from rich.progress import Progress

    from bayrace.data.embedded import embedded_frames
    from bayrace.simulate.dynamics import DynamicsSettings, ExplodedError
    from bayrace.simulate.dynamics import simulate as looks

    start = embedded_frames("ethanol-test")[0]
    settings = DynamicsSettings("nvt", 300.0, steps, timestep=TIMESTEP, uncertainty_every=10)
    trajectory, begin = Trajectory(), time.monotonic()
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("molecular dynamics", total=steps)
        try:
            for look in looks(result.potential, start, settings):
                trajectory.time.append(look.time)
                trajectory.potential_energy.append(look.energy)
                trajectory.temperature.append(look.temperature)
                trajectory.force_spread.append(look.forces_std)
                progress.update(task, completed=look.step)
        except ExplodedError as error:  # of a network that was trained for seconds
            out.print(f"dynamics ended early: {error}; train longer with --max-time")
    trajectory.seconds = time.monotonic() - begin
    simulated = trajectory.time[-1]
    out.print(
        f"dynamics: {simulated / 1000:.2g} ps at 300 K in {trajectory.seconds:.0f} s, "
        f"{1000 * trajectory.seconds * TIMESTEP / max(simulated, TIMESTEP):.1f} ms a step, mean "
        f"temperature {sum(trajectory.temperature) / len(trajectory.temperature):.0f} K"
    )
    return trajectory


def write_page(output: Path, result: RunResult, trajectory: Trajectory) -> Path:
    """Figures as PNG files, and the report as one HTML page."""
    from bayrace.calibrate.seen import overlap
    from bayrace.data.embedded import embedded_frames
    from bayrace.evaluate.judged import judge
    from bayrace.report.build import build_report
    from bayrace.report.document import Code, Section
    from bayrace.report.page import render
    from bayrace.report.panels.dynamics import dynamics_panels
    from bayrace.report.provenance import potential_facts
    from bayrace.train.checkpoint import write_atomically
    from bayrace.workflow.train import evaluate_sets

    write_figures(output, result, trajectory)
    potential, file = result.potential, output / "model.bayrace"
    known, hot = embedded_frames("ethanol-test"), embedded_frames("ethanol-hot")
    raw = evaluate_sets(replace(potential, calibration=None), {KNOWN: known, HOT: hot})

    def judged(frames: list[Frame], place: int, role: Role) -> Judged:
        return judge(
            result.evaluations[place],
            frames,
            role=role,
            raw=raw[place],
            calibration=potential.calibration,
            seen=overlap(potential.frames, frames),
        )

    panels = dynamics_panels(
        time=trajectory.time,
        potential_energy=trajectory.potential_energy,
        temperature=trajectory.temperature,
        force_spread=trajectory.force_spread,
    )
    report = build_report(
        [
            judged(known, 0, "test"),
            judged(hot, 1, "ood"),
        ],
        title="bayrace demo: ethanol",
        subtitle=_INTRODUCTION,
        facts=potential_facts(potential, file),
        histories={"run": result.fit.history},
        extra=[
            Section("dynamics", "Molecular dynamics", _DYNAMICS, panels),
            Section("use", "Use it", "", [Code(_USE.format(file=file))]),
        ],
    )
    page = output / "report.html"
    write_atomically(page, render(report).encode())
    return page


def write_figures(output: Path, result: RunResult, trajectory: Trajectory) -> None:
    """Figures as PNG files, for slides."""
    from bayrace.report import figures

    drawings = {
        "parity": figures.parity(result.evaluations),
        "error-against-sigma": figures.error_against_spread(result.evaluations),
        "sigma": figures.spread_histograms(result.evaluations),
        "learning": figures.learning_curves(result.fit.history),
        "dynamics": figures.trajectory(
            time=trajectory.time,
            potential_energy=trajectory.potential_energy,
            temperature=trajectory.temperature,
            force_spread=trajectory.force_spread,
        ),
    }
    for name, figure in drawings.items():
        figures.save(figure, output / f"{name}.png")


_INTRODUCTION = (
    "A small RACE network, trained for a few minutes on 400 structures of ethanol at 300 K, "
    "predicts energies, forces, and for each of them a variance: for each atom's force a 3×3 "
    "covariance. They come from how far each atom is from all that the network has learned, scaled "
    "by its errors on the validation set. Here are its errors on structures like those it has "
    "seen, and on hot ones it has not, beside the σ it predicted. References are GFN2-xTB."
)
_DYNAMICS = "Langevin dynamics at 300 K with this potential, and the σ on the way."
_USE = """from ase.io import read
from bayrace import Calculator

atoms = read("ethanol.xyz")
atoms.calc = Calculator("{file}")
print(atoms.get_potential_energy(), atoms.calc.results["energy_uncertainty"])
print(atoms.get_forces(), atoms.calc.results["forces_uncertainty"])
"""
