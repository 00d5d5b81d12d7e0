"""One labelled structure as plain arrays, and its bridge to and from ASE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import chemical_symbols

from bayrace.data.gaps import derived_label, derived_names

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Results = dict[str, Any]

DEFAULT_TYPE = "Default"
ISOLATED_TYPE = "IsolatedAtom"


class DataError(ValueError):
    """Input that cannot be used; the message says where it is, what it is and what to do."""


@dataclass(frozen=True)
class LabelKeys:
    """Names of the labels in a file; None means the calculator's results (virial: none)."""

    energy: str | None
    forces: str | None
    stress: str | None
    virial: str | None
    config_type: str | None  # None means "config_type"
    forces_too: bool = True  # off where `energy` names another property, which has none

    def configured(self) -> tuple[str, ...]:
        """The label keys that were asked for by name."""
        keys = (self.energy, self.forces, self.stress, self.virial)
        return tuple(key for key in keys if key is not None)


@dataclass(frozen=True, eq=False)
class Frame:
    """A structure of n atoms with the labels it has; a missing label is None."""

    numbers: Integers  # (n,) atomic numbers
    positions: Floats  # (n, 3) Å
    cell: Floats  # (3, 3) Å, rows are lattice vectors
    pbc: npt.NDArray[np.bool_]  # (3,)
    energy: float | None  # eV, as in the file
    forces: Floats | None  # (n, 3) eV/Å
    stress: Floats | None  # (6,) eV/Å³, Voigt order and sign of ASE
    config_type: str
    weight: float  # of this structure in the loss
    source: str  # file it came from
    index: int  # its number in that file, from 0

    @property
    def origin(self) -> str:
        """Where the frame came from, as messages show it: "file.xyz, frame 12"."""
        return f"{self.source}, frame {self.index}"

    @property
    def labelled(self) -> bool:
        """Whether there is something to learn from or to compare with."""
        return self.energy is not None or self.forces is not None


def bare_frame(
    numbers: Integers,
    positions: Floats,
    cell: Floats,
    pbc: npt.NDArray[np.bool_],
    *,
    source: str,
    index: int = 0,
) -> Frame:
    """A geometry without labels, as prediction needs it."""
    return Frame(
        numbers=numbers,
        positions=positions,
        cell=cell,
        pbc=pbc,
        energy=None,
        forces=None,
        stress=None,
        config_type=DEFAULT_TYPE,
        weight=1.0,
        source=source,
        index=index,
    )


def frame_from_atoms(
    atoms: Atoms,
    *,
    keys: LabelKeys | None,
    source: str = "atoms",
    index: int = 0,
    weight: float = 1.0,
    require_labels: bool = False,
) -> Frame:
    """Convert ASE atoms; `keys=None` takes the geometry only, as prediction needs.

    With `require_labels`, a configured key that these atoms do not have is refused.
    """
    label = f"{source}, frame {index}"
    if require_labels and keys is not None:
        _require(atoms, keys, label)
    results = results_of(atoms) if keys else {}
    energy = _energy(atoms, keys, results, label) if keys else None
    derived = keys is not None and keys.forces_too
    forces = _forces(atoms, keys, results, label) if keys and derived else None
    stress = _stress(atoms, keys, results, label) if keys and derived else None
    type_key = (keys.config_type if keys else None) or "config_type"
    return Frame(
        numbers=np.array(atoms.numbers, dtype=np.int64),
        positions=np.array(atoms.positions, dtype=np.float64),
        cell=np.array(atoms.cell.array, dtype=np.float64),
        pbc=np.array(atoms.pbc, dtype=bool),
        energy=energy,
        forces=forces,
        stress=stress,
        config_type=_config_type(atoms.info.get(type_key, DEFAULT_TYPE)),
        weight=weight,
        source=source,
        index=index,
    )


def frame_to_atoms(frame: Frame) -> Atoms:
    """Convert to ASE atoms whose single-point calculator carries the labels."""
    atoms = Atoms(frame.numbers, positions=frame.positions, cell=frame.cell, pbc=frame.pbc)
    if frame.config_type != DEFAULT_TYPE:
        atoms.info["config_type"] = frame.config_type
    labels = {"energy": frame.energy, "forces": frame.forces, "stress": frame.stress}
    present = {name: value for name, value in labels.items() if value is not None}
    if present:
        atoms.calc = SinglePointCalculator(atoms, **present)  # type: ignore[no-untyped-call]
    return atoms


def elements_of(frames: Iterable[Frame]) -> tuple[int, ...]:
    """Atomic numbers that occur, ascending."""
    return tuple(sorted({int(number) for frame in frames for number in np.unique(frame.numbers)}))


def symbols_of(numbers: Iterable[int]) -> str:
    """Element symbols for a message: "C, H, O"."""
    return ", ".join(chemical_symbols[number] for number in numbers)


def split_isolated(frames: Sequence[Frame]) -> tuple[list[Frame], dict[int, float]]:
    """Set the IsolatedAtom frames apart and return their energies by atomic number, eV."""
    isolated = [frame for frame in frames if frame.config_type == ISOLATED_TYPE]
    rest = [frame for frame in frames if frame.config_type != ISOLATED_TYPE]
    return rest, isolated_energies(isolated)


def isolated_energies(frames: Iterable[Frame]) -> dict[int, float]:
    """Energies of single-atom frames by atomic number, eV."""
    energies: dict[int, float] = {}
    for frame in frames:
        if len(frame.numbers) != 1:
            raise DataError(
                f"{frame.origin}: an isolated atom has {len(frame.numbers)} atoms; "
                f"correct its config_type or remove the frame"
            )
        if frame.energy is None:
            raise DataError(f"{frame.origin}: an isolated atom has no energy; add it or remove it")
        number = int(frame.numbers[0])
        if abs(energies.get(number, frame.energy) - frame.energy) > 1e-6:
            raise DataError(
                f"{frame.origin}: isolated {chemical_symbols[number]} has energy {frame.energy} eV "
                f"here and {energies[number]} eV in an earlier frame; keep one of them"
            )
        energies[number] = frame.energy
    return energies


def label_names(atoms: Atoms) -> set[str]:
    """Everything in these atoms that a label key could name."""
    stored = {*atoms.info, *atoms.arrays, *results_of(atoms)} - {"numbers", "positions"}
    return stored | derived_names(atoms.info, atoms.arrays)


def _config_type(value: object) -> str:
    """As in the file, but for the many spellings of isolated atoms: isolated_atom and the like."""
    name = str(value)
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    return ISOLATED_TYPE if plain == ISOLATED_TYPE.lower() else name


def _require(atoms: Atoms, keys: LabelKeys, label: str) -> None:
    present = label_names(atoms)
    for key in keys.configured():
        if key not in present:
            shown = ", ".join(sorted(present)) or "none"
            raise DataError(f"{label}: no label {key!r}; present: {shown}; name one of these")


def results_of(atoms: Atoms) -> Results:
    """Results of the attached calculator, unless the atoms have moved since."""
    calculator = atoms.calc
    if calculator is None:
        return {}
    changes = calculator.check_state(atoms) if hasattr(calculator, "check_state") else []
    if {"positions", "numbers", "cell", "pbc"} & set(changes):
        return {}
    return {name: value for name, value in calculator.results.items() if value is not None}


def _lookup(atoms: Atoms, results: Results, key: str | None, default: str) -> Any:
    """Value of a configured key, or of the calculator's result; None where absent."""
    if key is None:
        return results.get(default)
    for place in (atoms.info, atoms.arrays):
        if key in place:
            return place[key]
    if key in results:  # ASE moves keys it knows from the file to the calculator
        return results[key]
    return derived_label(key, atoms.info, atoms.arrays)


def _array(value: Any, name: str, label: str) -> Floats:
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{label}: {name} is {value!r}, not a number; correct it or remove the label"
        ) from None


def _energy(atoms: Atoms, keys: LabelKeys, results: Results, label: str) -> float | None:
    value = _lookup(atoms, results, keys.energy, "energy")
    if value is None and keys.energy is None:
        value = results.get("free_energy")
    if value is None:
        return None
    energy = _array(value, keys.energy or "energy", label)
    if energy.size != 1:
        raise DataError(
            f"{label}: {keys.energy or 'energy'} has shape {energy.shape}, expected one number; "
            f"use the key of the total energy"
        )
    return float(energy.reshape(()))


def _forces(atoms: Atoms, keys: LabelKeys, results: Results, label: str) -> Floats | None:
    value = _lookup(atoms, results, keys.forces, "forces")
    if value is None:
        return None
    forces = _array(value, keys.forces or "forces", label)
    if forces.shape != (len(atoms), 3):
        raise DataError(
            f"{label}: {keys.forces or 'forces'} has shape {forces.shape}, expected "
            f"({len(atoms)}, 3); use a key with three columns per atom"
        )
    return forces


def _stress(atoms: Atoms, keys: LabelKeys, results: Results, label: str) -> Floats | None:
    value = _lookup(atoms, results, keys.stress, "stress")
    if value is not None:
        return _voigt(_array(value, keys.stress or "stress", label), keys.stress or "stress", label)
    if keys.virial is None:
        return None
    value = _lookup(atoms, results, keys.virial, "virial")
    if value is None:
        return None
    virial = _voigt(_array(value, keys.virial, label), keys.virial, label)
    volume = abs(float(np.linalg.det(atoms.cell.array)))
    if volume == 0.0:
        raise DataError(
            f"{label}: {keys.virial} needs a cell of volume > 0 Å³; add a Lattice or remove it"
        )
    return -virial / volume


def _voigt(value: Floats, name: str, label: str) -> Floats:
    """Six components (xx, yy, zz, yz, xz, xy) from 6 or 3×3 numbers."""
    if value.shape == (6,):
        return value
    if value.shape not in {(9,), (3, 3)}:
        raise DataError(
            f"{label}: {name} has shape {value.shape}, expected 6 or 3x3 numbers; "
            f"correct it or remove the label"
        )
    tensor = value.reshape(3, 3)
    if np.abs(tensor - tensor.T).max() > 1e-3 * np.abs(tensor).max() + 1e-8:
        raise DataError(
            f"{label}: {name} is not symmetric: {tensor.tolist()}; correct it or remove the label"
        )
    symmetric = 0.5 * (tensor + tensor.T)
    return symmetric[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]


def grouped(frames: Iterable[Frame], *, most_atoms: float) -> Iterator[list[Frame]]:
    """Consecutive frames together while they have at most so many atoms; a larger one is alone."""
    group: list[Frame] = []
    atoms = 0
    for frame in frames:
        if group and atoms + len(frame.numbers) > most_atoms:
            yield group
            group, atoms = [], 0
        group.append(frame)
        atoms += len(frame.numbers)
    if group:
        yield group
