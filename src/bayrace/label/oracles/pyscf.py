"""Density functional theory for molecules by PySCF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, MinLen
from ase.data import chemical_symbols

from bayrace.core.units import BOHR, HARTREE
from bayrace.data.frame import Frame
from bayrace.label.oracle import OracleError, labelled


@dataclass(frozen=True)
class PyscfOracle:
    """Density functional theory of molecules by PySCF.

    Restricted for singlets and unrestricted for others; "hf" is Hartree-Fock.
    """

    name: ClassVar[str] = "dft"
    functional: Annotated[str, MinLen(1)] = "pbe"
    """Functional as PySCF calls it: pbe, b3lyp, wb97x; hf too."""
    basis: Annotated[str, MinLen(1)] = "def2-svp"
    """Basis set as PySCF calls it."""
    charge: int = 0
    """Charge of every structure, e."""
    multiplicity: Annotated[int, Ge(1)] | None = None
    """2S + 1; null: 1 or 2, by the number of electrons."""
    density_fit: bool = False
    """Faster for larger molecules, with errors of about 1e-5 eV an atom."""
    grid: Annotated[int, Ge(0), Le(9)] = 3
    """Fineness of the integration grid, 0 to 9."""
    tolerance: Annotated[float, Gt(0)] = 1e-9
    """Of the self-consistent energy, Hartree."""
    max_cycles: Annotated[int, Ge(1)] = 100
    """Most cycles of the self-consistency."""
    memory: Annotated[int, Ge(100)] = 4000
    """Memory for PySCF, MB."""

    @property
    def method(self) -> str:
        """Functional, basis, charge, spin and numerics."""
        spin = "" if self.multiplicity is None else f", multiplicity {self.multiplicity}"
        fitted = ", density fitting" if self.density_fit else ""
        numbers = f"grid {self.grid}, tolerance {self.tolerance:g}"
        name = f"{self.functional}/{self.basis}".lower()
        return f"{name}, charge {self.charge}{spin}{fitted}, {numbers} (PySCF)"

    def label(self, frame: Frame) -> Frame:
        """Energy and forces of a molecule."""
        if frame.pbc.any():
            raise OracleError(
                f"{frame.origin}: periodic, but the PySCF oracle is for molecules; use gfn1, gfn2, "
                "or an ASE calculator or command for solids"
            )
        try:
            import pyscf
        except ImportError as error:
            raise OracleError(
                f"DFT needs PySCF ({error}); pip install 'bayrace[oracles]'"
            ) from error
        try:
            field = self._field(pyscf, frame)
            energy = field.kernel()
        except Exception as error:  # unknown names, linear dependence, wrong spin
            raise OracleError(
                f"{frame.origin}: {self.method} failed ({type(error).__name__}: {error}); check "
                "functional, basis, charge and multiplicity"
            ) from error
        if not field.converged:
            raise OracleError(
                f"{frame.origin}: {self.method} did not converge in {self.max_cycles} cycles; "
                "raise max_cycles, or leave the structure out"
            )
        gradient = field.nuc_grad_method().kernel()
        results = {"energy": energy * HARTREE, "forces": -gradient * HARTREE / BOHR}
        return labelled(frame, results)

    def _field(self, pyscf: Any, frame: Frame) -> Any:
        """The self-consistent field, not yet solved."""
        from pyscf import dft

        electrons = int(frame.numbers.sum()) - self.charge
        spin = electrons % 2 if self.multiplicity is None else self.multiplicity - 1
        pairs = zip(frame.numbers, frame.positions / BOHR, strict=True)
        molecule = pyscf.gto.M(
            atom=[(chemical_symbols[number], tuple(place)) for number, place in pairs],
            unit="Bohr",  # ours, so that units do not depend on PySCF's constants
            basis=self.basis,
            charge=self.charge,
            spin=spin,
            max_memory=self.memory,
            verbose=0,
        )
        field = dft.RKS(molecule) if spin == 0 else dft.UKS(molecule)
        field.xc = self.functional
        field.grids.level = self.grid
        field.conv_tol = self.tolerance
        field.max_cycle = self.max_cycles
        return field.density_fit() if self.density_fit else field


METHODS = (PyscfOracle,)
