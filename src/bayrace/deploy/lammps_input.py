"""A folder that LAMMPS can run: structure, input and a short Python driver, to be changed at will.

    in.system   units, box and atoms       structure.data   the structure
    in.run      what is done with them     run.py           loads the potential, runs both inputs

The input is in two files because forces come from Python: the driver couples the potential to the
atoms when they are there, and before anything moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ase import Atoms
from ase.data import chemical_symbols
from ase.io.lammpsdata import write_lammps_data

from bayrace.deploy.lammps import COLUMNS, FIX, PROPERTIES

if TYPE_CHECKING:
    from bayrace.simulate.stop import StopRule

_BAR = 1e4  # of a GPa


@dataclass(frozen=True)
class LammpsRun:
    """What LAMMPS is to do."""

    ensemble: Literal["nve", "nvt", "npt", "minimise"]
    steps: int
    temperature: float = 300.0  # K; of the first velocities, and of the thermostat
    timestep: float = 0.5  # fs
    relaxation: float = 100.0  # fs, of the temperature
    pressure: float = 0.0  # GPa
    pressure_relaxation: float = 1000.0  # fs
    max_force: float = 0.001  # eV/Å, where a minimisation ends
    every: int = 10  # steps between lines of output and frames of the trajectory
    uncertainty_every: int = 1  # steps between looks at the uncertainty
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that make no run."""
        for name in ("temperature", "timestep", "relaxation", "pressure_relaxation", "max_force"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be above 0")
        for name in ("steps", "every", "uncertainty_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be 1 or more")


def write_inputs(
    folder: Path, model: Path, atoms: Atoms, run: LammpsRun, rule: StopRule | None
) -> list[Path]:
    """Write the folder for one structure; it keeps its velocities if it has any."""
    if run.ensemble == "npt" and not atoms.pbc.all():
        raise ValueError(
            f"npt needs a cell periodic in all three directions, but pbc={atoms.pbc.tolist()}; "
            "use nvt, or give the structure its cell"
        )
    folder.mkdir(parents=True, exist_ok=True)
    elements = [chemical_symbols[number] for number in sorted(set(atoms.numbers.tolist()))]
    moving = bool(atoms.has("momenta"))  # type: ignore[no-untyped-call]
    texts = {
        "in.system": _system(atoms),
        "in.run": _run(run, elements, rule, triclinic=_tilted(atoms), moving=moving),
        "run.py": _driver(model, elements, run, rule),
    }
    data = folder / "structure.data"
    write_lammps_data(
        data, _boxed(atoms), specorder=elements, masses=True, velocities=moving, units="metal"
    )
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in ("run.py", "in.system", "in.run", "structure.data")]


def _boxed(atoms: Atoms) -> Atoms:
    """With a box around what is not periodic, which LAMMPS then fits to the atoms."""
    if atoms.pbc.all():
        return atoms
    boxed: Atoms = atoms.copy()  # type: ignore[no-untyped-call]
    open_ends = [axis for axis in range(3) if not atoms.pbc[axis]]
    boxed.center(vacuum=2.0, axis=open_ends)  # type: ignore[no-untyped-call]
    return boxed


def _tilted(atoms: Atoms) -> bool:
    lengths, angles = atoms.cell.lengths(), atoms.cell.angles()
    return bool(atoms.pbc.any() and lengths.all() and (abs(angles - 90.0) > 1e-6).any())


def _system(atoms: Atoms) -> str:
    ends = " ".join("p" if periodic else "s" for periodic in atoms.pbc)
    return f"""# eV, Å, ps. Written by bayrace lammps.
units metal
atom_style atomic
atom_modify map yes
boundary {ends}
box tilt large
variable restart index none  # python run.py -var restart state.restart goes on from a file
variable fresh equal 1-is_file(${{restart}})
if "${{fresh}}" then "read_data structure.data" else "read_restart ${{restart}}"
pair_style zero 2.0 nocoeff  # forces come from the potential, through fix external
pair_coeff * *
"""


def _run(
    run: LammpsRun, elements: list[str], rule: StopRule | None, *, triclinic: bool, moving: bool
) -> str:
    columns = "\n".join(
        f"variable {name} equal f_{FIX}[{place}]" for place, name in enumerate(COLUMNS, start=1)
    )
    shown = " ".join(f"v_{name}" for name in COLUMNS[: 3 if rule is None else 4])
    atoms = " ".join(f"d_{name}" for name in PROPERTIES)
    halt = ""
    if rule is not None and rule.action == "stop":
        halt = f"fix stop all halt {run.uncertainty_every} v_broken > 0.5 error soft message yes\n"
    return f"""# σ and P(|force error| > bound) as columns of thermo, σ of atoms in the dump.
{columns}
thermo {run.every}
thermo_style custom step time temp pe etotal press vol {shown}
dump trajectory all custom {run.every} trajectory.dump id type element xu yu zu fx fy fz {atoms}
dump_modify trajectory element {" ".join(elements)} sort id
restart {100 * run.every} state.1.restart state.2.restart
{halt}{_motion(run, triclinic=triclinic, moving=moving)}
write_restart state.restart
"""


def _motion(run: LammpsRun, *, triclinic: bool, moving: bool) -> str:
    if run.ensemble == "minimise":
        return f"min_style cg\nminimize 0.0 {run.max_force:g} {run.steps} {10 * run.steps}"
    slow, target = run.relaxation / 1000, run.temperature
    heat = f"temp {target:g} {target:g} {slow:g}"
    pressure, slower = run.pressure * _BAR, run.pressure_relaxation / 1000
    shape = "tri" if triclinic else "aniso"
    integrate = {
        "nve": "nve",
        "nvt": f"nvt {heat}",
        "npt": f"npt {heat} {shape} {pressure:g} {pressure:g} {slower:g}",
    }[run.ensemble]
    velocities = ""
    if not moving:
        seed = run.seed + 1  # LAMMPS wants it positive
        create = f"velocity all create {target:g} {seed} mom yes rot no dist gaussian"
        velocities = f'if "${{fresh}}" then "{create}"\n'
    return f"""timestep {run.timestep / 1000:g}
{velocities}fix integrate all {integrate}
run {run.steps}"""


def _driver(model: Path, elements: list[str], run: LammpsRun, rule: StopRule | None) -> str:
    imported = "" if rule is None else "from bayrace.simulate.stop import StopRule\n"
    return f'''"""Runs in.system and in.run with a potential. Arguments go to LAMMPS."""

import os
import sys
from pathlib import Path

from bayrace.deploy.evaluator import Evaluator
from bayrace.deploy.lammps import couple, open_lammps
{imported}
os.chdir(Path(__file__).parent)
evaluator = Evaluator({str(model.resolve())!r}, rule={rule!r})
lammps = open_lammps(sys.argv[1:])
lammps.file("in.system")
simulation = couple(lammps, evaluator, {elements!r}, uncertainty_every={run.uncertainty_every})
simulation.file("in.run")
sys.exit(3 if simulation.broken else 0)  # 3: the stop rule ended it
'''
