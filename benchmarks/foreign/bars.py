"""SevenNet-0 and CHGNet with σ of ours: are they still themselves, and is σ worth anything?

python benchmarks/foreign/bars.py                   # both networks; --networks 7net-0 for one
python benchmarks/foreign/bars.py --materials NaCl  # one material alone
python benchmarks/foreign/bars.py --structures 8    # to see whether it runs
python benchmarks/foreign/bars.py --seed 1          # another draw of the structures
python benchmarks/foreign/bars.py --posteriors distance llpr --energies llpr  # see below

Needs pip install 'bayrace[sevennet,chgnet]', whose wheels hold the weights; nothing is fetched.
Each network is adopted for eight-atom cells of salt and silicon, rattled by 0.02 to 0.12 Å and
strained by 1.5 %, that the other network has labelled. Printed are

- the largest difference from the package's own energies (per atom) and forces (bar: 1e-5 eV, eV/Å);
- the share of new structures of the same kind in their 90 % intervals (bar: 85 to 95 %);
- the AUROC of σ between those structures and ones rattled by 0.25 to 0.35 Å (bar: 0.95);
- medians of σ against the rattle, of the errors beside them, and the rattle from which on each
  rises: inside the data, σ has to follow the errors (`--energies llpr`: of energies alone, as
  LLPR's σ of forces is slow);
- where dynamics at 300 K and at 6000 K end, by `bayrace md` with its default rule.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

import bayrace
from bayrace.cli.main import app
from bayrace.core.prediction import Prediction
from bayrace.evaluate.metrics.ood import auroc
from bayrace.potential.potential import Potential

LATTICES = {"NaCl": ("rocksalt", 5.64), "Si": ("diamond", 5.43)}
OTHER = {"7net-0": "chgnet", "chgnet": "7net-0"}
HOME, FAR, STRAIN = (0.02, 0.12), (0.25, 0.35), 0.015
DRAW = 100_000  # seeds of one draw
RATTLES = (0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3)  # Å
SHORTEST = 1.0  # Å between atoms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=OTHER, default=list(OTHER))
    parser.add_argument("--materials", nargs="+", choices=LATTICES, default=list(LATTICES))
    parser.add_argument("--structures", type=int, default=60, help="of each material and part")
    parser.add_argument("--seed", type=int, default=0, help="of the structures")
    parser.add_argument("--posteriors", nargs="+", default=["distance"])
    parser.add_argument(
        "--energies", nargs="+", default=[], help="posteriors whose σ of forces is not looked at"
    )
    parser.add_argument("--growth", default="auto", help="as of bayrace adopt")
    parser.add_argument("--set", action="append", default=[], help="key=value for bayrace adopt")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of other packages
    torch.set_num_threads(1)
    for network in options.networks:
        with tempfile.TemporaryDirectory(prefix="bayrace-foreign-") as folder:
            materials, count = tuple(options.materials), options.structures
            trial = Trial(network, materials, count, Path(folder), options.seed * DRAW)
            print(f"\n{network}, labels of {OTHER[network]}, draw {options.seed}", flush=True)
            parts = label(trial)
            for posterior in options.posteriors:
                changes = [f"--set={each}" for each in options.set]
                adopting = ["--posterior", posterior, "--growth", options.growth, *changes]
                measure(trial, parts, adopting, forces=posterior not in options.energies)


@dataclass(frozen=True)
class Trial:
    """Which network is adopted for what, and where."""

    network: str
    materials: tuple[str, ...]
    count: int  # structures of each material and part
    folder: Path
    first: int  # seed

    def cells(self, amplitudes: tuple[float, float], count: int, *, seed: int) -> Iterator[Atoms]:
        """So many cells of each material."""
        seed += self.first
        random = np.random.default_rng(seed)
        for material in self.materials:
            for number in range(count):
                yield crystal(material, random.uniform(*amplitudes), seed=seed + number)


@dataclass(frozen=True)
class Parts:
    """Labelled structures."""

    test: Sequence[Atoms]
    far: Sequence[Atoms]
    rising: dict[str, list[list[Atoms]]]  # of each material, for each of RATTLES


def label(trial: Trial) -> Parts:
    """Those of a trial by the other network; what it is adopted for goes to home.xyz."""
    labels, count = own_calculator(OTHER[trial.network]), trial.count
    home, test, far = (
        [labelled(atoms, labels) for atoms in trial.cells(amplitudes, number, seed=seed)]
        for seed, amplitudes, number in (
            (0, HOME, count),
            (1000, HOME, count),
            (2000, FAR, count // 2),
        )
    )
    ase.io.write(trial.folder / "home.xyz", home)
    seeds = range(trial.first, trial.first + max(4, count // 6))
    rising = {
        material: [
            [labelled(crystal(material, rattle, seed=seed), labels) for seed in seeds]
            for rattle in RATTLES
        ]
        for material in trial.materials
    }
    return Parts(test, far, rising)


def measure(trial: Trial, parts: Parts, adopting: Sequence[str], *, forces: bool) -> None:
    """All figures of one network with one posterior; of energies alone without `forces`."""
    network, folder = trial.network, trial.folder
    print(f" {' '.join(adopting)}", flush=True)
    command = ["adopt", network, "--data", f"{folder}/home.xyz", *adopting]
    said = run(*command, "-o", f"{folder}/adopted.bayrace")
    print("  " + next(line for line in said.splitlines() if line.startswith("errors grow")))
    potential = Potential.load(folder / "adopted.bayrace")
    print_reproduction(trial, potential)
    near = predicted(potential, parts.test, forces=forces)
    print_intervals(near, parts.test)
    print_detection(near, predicted(potential, parts.far, forces=forces), forces=forces)
    for material in trial.materials:
        print_rise(potential, material, parts.rising[material], forces=forces)
        print_dynamics(trial, material)


def print_dynamics(trial: Trial, material: str) -> None:
    """Where `bayrace md` ends."""
    folder = trial.folder
    ase.io.write(folder / "start.xyz", crystal(material, 0.05, seed=trial.first + 1))
    for temperature, steps in ((300, 50), (6000, 200)):
        said = run(
            *("md", f"{folder}/adopted.bayrace", f"{folder}/start.xyz", "--overwrite"),
            *("--temperature", str(temperature), "--steps", str(steps), "--timestep", "2"),
            *("-o", f"{folder}/md.traj"),
            codes=(0, 3),
        )
        stopped = [line for line in said.splitlines() if line.startswith("stopped:")]
        end = stopped[0][:90] if stopped else "ran through"
        print(f"  md {material} {temperature} K, {steps} steps: {end}", flush=True)


def print_reproduction(trial: Trial, potential: Potential) -> None:
    """Differences from what the package itself says, in double precision where it has that."""
    network = trial.network
    calculator = own_calculator(network, double=network == "chgnet")
    exact = potential.to(dtype="float64") if network == "chgnet" else potential
    shifts = exact.references
    energies, forces = [], []
    for material in trial.materials:
        for seed in range(3):
            atoms = crystal(material, 0.1, seed=trial.first + 5000 + seed)
            found = exact.predict(atoms)
            atoms.calc = calculator
            zero = sum(shifts[number] for number in atoms.numbers)
            energy = float(found.energy.mean[0]) - zero - float(atoms.get_potential_energy())
            energies.append(abs(energy) / len(atoms))
            forces.append(np.abs(found.forces.mean.numpy() - atoms.get_forces()).max())
    print(f"  its own energies to {max(energies):.1e} eV/atom, forces to {max(forces):.1e} eV/Å")


def predicted(potential: Potential, images: Sequence[Atoms], *, forces: bool) -> Prediction:
    return potential.predict(images, uncertainty="full" if forces else "energy")


def print_intervals(found: Prediction, test: Sequence[Atoms]) -> None:
    """Labels in their 90 % intervals, of all and of each material."""
    low, high = found.energy.interval(0.9)
    labels = torch.tensor([atoms.get_potential_energy() for atoms in test])
    inside = ((labels >= low) & (labels <= high)).numpy()
    errors = (found.energy.mean - labels).abs()
    salt = np.array([11 in atoms.numbers for atoms in test])
    parts = {"NaCl": salt, "Si": ~salt}
    each = ", ".join(f"{name} {inside[own].mean():.0%}" for name, own in parts.items() if own.any())
    print(
        f"  energies in 90 % intervals: {inside.mean():.0%} ({each}); mean error "
        f"{1000 * float(errors.mean()):.0f} meV, σ {1000 * float(found.energy.std.mean()):.0f} meV"
    )


def print_detection(near: Prediction, far: Prediction, *, forces: bool) -> None:
    """How well σ tells structures like the data from far ones."""
    said = f"by σ of energy {auroc(near.energy.std.numpy(), far.energy.std.numpy()):.3f}"
    if forces:
        said += f", of force {auroc(worst(near).numpy(), worst(far).numpy()):.3f}"
    print(f"  AUROC of the far ones: {said}", flush=True)


def print_rise(
    potential: Potential, material: str, rising: Sequence[Sequence[Atoms]], *, forces: bool
) -> None:
    """Medians of σ against the rattle, and of the errors beside it."""
    rows = []
    for images in rising:
        found = predicted(potential, images, forces=forces)
        truth = torch.tensor([atoms.get_potential_energy() for atoms in images])
        pulled = torch.tensor(np.concatenate([atoms.get_forces() for atoms in images]))
        error = (found.energy.mean - truth).abs()
        lengths = (found.forces.mean - pulled).norm(dim=-1).reshape(-1, 8).amax(1)
        columns = {"σ_E": found.energy.std, "error of the energy": error}
        if forces:
            columns |= {"σ_F": worst(found), "error of the force": lengths}
        rows.append([1000 * float(column.median()) for column in columns.values()])
    more = "; σ_F and error of the worst atom, meV/Å" if forces else ""
    print(f"  {material}: rattle, Å: σ_E, error, meV{more}")
    for rattle, row in zip(RATTLES, rows, strict=True):
        print(f"    {rattle:.2f}: {' '.join(f'{value:.0f}' for value in row)}")
    found_from = [
        f"{name} {rises_from(column):.2f}"
        for name, column in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    print(f"    rises from, Å: {', '.join(found_from)}", flush=True)


def rises_from(values: Sequence[float]) -> float:
    """The rattle from which on every value is above the one before."""
    place = len(values) - 1
    while place and values[place - 1] < values[place]:
        place -= 1
    return RATTLES[place]


def worst(prediction: Prediction) -> torch.Tensor:
    """σ of the force on the worst atom of cells of eight."""
    level: torch.Tensor = prediction.forces.level
    return level.reshape(-1, 8).amax(1)


def crystal(material: str, rattle: float, *, seed: int) -> Atoms:
    """Eight atoms, moved by a Gaussian of `rattle` Å in a strained cell."""
    random = np.random.default_rng([seed, len(material)])
    atoms = bulk(material, *LATTICES[material], cubic=True)
    strain = STRAIN * random.normal(size=(3, 3))
    atoms.set_cell(atoms.cell[:] @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
    while True:
        moved = atoms.copy()
        moved.positions += rattle * random.normal(size=(8, 3))
        if moved.get_all_distances(mic=True)[np.triu_indices(8, 1)].min() > SHORTEST:
            return moved


def labelled(atoms: Atoms, calculator: Any) -> Atoms:
    atoms.calc = calculator
    energy, forces = float(atoms.get_potential_energy()), atoms.get_forces()
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    return atoms


def own_calculator(network: str, *, double: bool = False) -> Any:
    """What the package itself offers."""
    with contextlib.redirect_stdout(io.StringIO()):
        if network == "7net-0":
            from sevenn.calculator import SevenNetCalculator

            return SevenNetCalculator(network, device="cpu")
        from chgnet.graph import converter, crystalgraph
        from chgnet.model import model
        from chgnet.model.dynamics import CHGNetCalculator

        calculator = CHGNetCalculator(use_device="cpu")
    dtype = torch.float64 if double else torch.float32  # its graphs are float32 otherwise
    for module in (converter, crystalgraph, model):
        module.TORCH_DTYPE = dtype
    if double:
        calculator.model.double()
        calculator.model.composition_model.float()  # which reads counts of atoms as float32
    return calculator


def run(*command: str, codes: tuple[int, ...] = (0,)) -> str:
    result = CliRunner().invoke(app, list(command))
    if result.exit_code not in codes:
        raise SystemExit(f"bayrace {' '.join(command)}: {result.output}")
    return str(result.output)


if __name__ == "__main__":
    print(f"bayrace {bayrace.__version__}, torch {torch.__version__}")
    main()
