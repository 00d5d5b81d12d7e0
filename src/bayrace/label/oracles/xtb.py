"""GFN1-xTB and GFN2-xTB by tblite: semi-empirical, milliseconds for a small molecule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bayrace.data.frame import Frame
from bayrace.label.oracle import OracleError, label_with


@dataclass(frozen=True)
class XtbOracle:
    """Tight binding for molecules and crystals of almost any element; stress where periodic."""

    hamiltonian: Literal["GFN1-xTB", "GFN2-xTB"] = "GFN2-xTB"
    charge: int = 0
    multiplicity: int | None = None  # None: 1 or 2, by the number of electrons
    accuracy: float = 0.01  # of the self-consistency; tblite's own is 1, forces need less
    max_iterations: int = 250
    electronic_temperature: float = 300.0  # K

    @property
    def method(self) -> str:
        """Hamiltonian and charge."""
        spin = "" if self.multiplicity is None else f", multiplicity {self.multiplicity}"
        numbers = f"accuracy {self.accuracy:g}, {self.electronic_temperature:g} K"
        return f"{self.hamiltonian}, charge {self.charge}{spin}, {numbers}"

    def label(self, frame: Frame) -> Frame:
        """Energy, forces, and stress where periodic."""
        try:
            from tblite.ase import TBLite
        except ImportError as error:
            raise OracleError(
                f"{self.hamiltonian} needs tblite ({error}); pip install 'bayrace[oracles]'"
            ) from error
        electrons = int(frame.numbers.sum()) - self.charge
        calculator = TBLite(
            method=self.hamiltonian,
            charge=self.charge,
            multiplicity=self.multiplicity or electrons % 2 + 1,
            accuracy=self.accuracy,
            max_iterations=self.max_iterations,
            electronic_temperature=self.electronic_temperature,
            verbosity=0,
        )
        try:
            return label_with(calculator, frame)
        except Exception as error:  # tblite's, ASE's
            raise OracleError(
                f"{frame.label}: {self.hamiltonian} failed ({error}); leave the structure out, "
                "check charge and multiplicity, or raise max_iterations or the electronic "
                "temperature"
            ) from error
