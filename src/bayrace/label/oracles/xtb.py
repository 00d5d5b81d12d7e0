"""GFN1-xTB and GFN2-xTB by tblite: semi-empirical, milliseconds for a small molecule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt

from bayrace.data.frame import Frame
from bayrace.label.oracle import OracleError, label_with


@dataclass(frozen=True)
class Gfn2:
    """GFN2-xTB, tight binding of almost any element, by tblite."""

    name: ClassVar[str] = "gfn2"
    section: ClassVar[str] = "xtb"
    hamiltonian: ClassVar[str] = "GFN2-xTB"
    charge: int = 0
    """Charge of every structure, e."""
    multiplicity: Annotated[int, Ge(1)] | None = None
    """2S + 1; null: 1 or 2, by the number of electrons."""
    accuracy: Annotated[float, Gt(0)] = 0.01  # tblite's own is 1, forces need less
    """Tightness of the self-consistency; smaller is tighter."""
    max_iterations: Annotated[int, Ge(1)] = 250
    """Most iterations of the self-consistency."""
    electronic_temperature: Annotated[float, Ge(0)] = 300.0
    """Temperature of the electrons, K."""

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
                f"{frame.origin}: {self.hamiltonian} failed ({error}); leave the structure out, "
                "check charge and multiplicity, or raise max_iterations or the electronic "
                "temperature"
            ) from error


@dataclass(frozen=True)
class Gfn1(Gfn2):
    """GFN1-xTB, tight binding of almost any element, by tblite."""

    name: ClassVar[str] = "gfn1"
    hamiltonian: ClassVar[str] = "GFN1-xTB"


METHODS = (Gfn1, Gfn2)
