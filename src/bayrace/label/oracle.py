"""What an oracle is: anything that gives a structure its energy, forces and stress.

Each kind is one file in `label/oracles`. They are plain frozen data, so that they can be sent to
other processes and machines; calculators are made where the work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError

from bayrace.data.frame import Frame, frame_to_atoms


class OracleError(ValueError):
    """A structure that could not be labelled; the message says which, why and what to do."""


class Oracle(Protocol):
    """Labels structures; one call is one (expensive) calculation.

    A frozen dataclass: its fields are its options, the section `oracle.NAME` of configurations, and
    the first line of its documentation is shown where oracles are listed.
    """

    name: ClassVar[str]

    @property
    def method(self) -> str:
        """What is computed, in a line; labels of different methods are never mixed."""
        ...

    def label(self, frame: Frame) -> Frame:
        """The frame with energy (eV), forces (eV/Å), and stress (eV/Å³) where there is one."""
        ...


def label_with(calculator: Any, frame: Frame) -> Frame:
    """Label a frame by an ASE calculator.

    Forces are the slope of the free energy where electrons have a temperature, so that is the
    energy taken wherever a calculator tells it. Stress is asked for in fully periodic cells.
    """
    atoms: Any = bare_atoms(frame)
    atoms.calc = calculator
    try:
        energy = atoms.get_potential_energy(force_consistent=True)
    except PropertyNotImplementedError:
        energy = atoms.get_potential_energy()
    results: dict[str, Any] = {"energy": energy, "forces": atoms.get_forces()}
    if frame.pbc.all():
        with suppress(PropertyNotImplementedError, NotImplementedError):
            results["stress"] = atoms.get_stress()
    return labelled(frame, results)


def bare_atoms(frame: Frame) -> Atoms:
    """The structure alone, for a calculator."""
    return frame_to_atoms(replace(frame, energy=None, forces=None, stress=None))


def labelled(frame: Frame, results: Mapping[str, Any]) -> Frame:
    """The frame with these results for labels."""
    stress = results.get("stress")
    return replace(
        frame,
        energy=float(results["energy"]),
        forces=np.array(results["forces"], dtype=np.float64),
        stress=None if stress is None else np.array(stress, dtype=np.float64),
    )


def check_label(frame: Frame, *, max_force: float) -> None:
    """Refuse labels that no method means: missing, not finite, or beyond `max_force` (eV/Å)."""
    if frame.energy is None or frame.forces is None:
        raise OracleError(f"{frame.origin}: no energy or no forces came back; ask for both")
    if frame.forces.shape != frame.positions.shape:
        raise OracleError(
            f"{frame.origin}: forces of shape {frame.forces.shape} came back for "
            f"{len(frame.numbers)} atoms; check the oracle's output"
        )
    for name in ("energy", "forces", "stress"):
        value = getattr(frame, name)
        if value is not None and not np.isfinite(value).all():
            raise OracleError(
                f"{frame.origin}: {name} is not finite; the calculation has failed silently: "
                "leave the structure out, or tighten the oracle's convergence"
            )
    length = np.linalg.norm(frame.forces, axis=1)
    if length.max(initial=0.0) > max_force:
        atom = int(np.argmax(length))
        raise OracleError(
            f"{frame.origin}: the force on atom {atom} is {length[atom]:.4g} eV/Å, above "
            f"{max_force:g}; leave the structure out, or raise max_force if it is real"
        )
