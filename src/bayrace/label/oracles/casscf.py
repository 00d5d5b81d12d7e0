"""Two electronic states by state-averaged CASSCF(2,2) (PySCF): energies, gradients, coupling.

Also in diabatic form, as the paper has it. In natural orbitals a, b of the averaged density the
two states are mixtures of a perfectly paired one (a², b²: PPS) and an open-shell singlet (ab: OSS).
With p the share of the configuration ab that state 0 has of the two,

    E_PPS = E₀ + p G,   E_OSS = E₁ − p G,   Δ² = p (1 − p) G²,   G = E₁ − E₀,

which are smooth where the adiabats cross, and their adiabats are E₀ and E₁ again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from bayrace.core.units import BOHR, HARTREE
from bayrace.label.oracle import OracleError

Array = NDArray[np.float64]
_SAME_ORBITALS = 0.8  # least overlap of the active orbitals with those of the similar structure


@dataclass(frozen=True)
class TwoStateCasscf:
    """SA-2-CASSCF(2,2) of a molecule with an even number of electrons, singlets only."""

    numbers: tuple[int, ...]  # atomic numbers
    charge: int = 0
    basis: str = "6-31g"
    tolerance: float = 1e-9  # Hartree

    @property
    def method(self) -> str:
        """In a line."""
        return f"SA-2-CASSCF(2,2)/{self.basis}, charge {self.charge} (PySCF)"

    def solve(self, positions: Array, orbitals: Array | None = None) -> Solved:
        """Both states at these positions (n, 3), Å, from orbitals of a similar structure.

        Active orbitals that turn into others on the way are refused: they are another solution of
        the equations, whose energies do not continue those before.
        """
        try:
            from pyscf import fci, gto, mcscf, scf
        except ImportError as error:
            raise OracleError(
                f"CASSCF needs PySCF ({error}); pip install 'bayrace[oracles]'"
            ) from error
        pairs = zip(self.numbers, positions / BOHR, strict=True)
        molecule = gto.M(
            atom=[(chemical_symbols[number], tuple(place)) for number, place in pairs],
            unit="Bohr",
            basis=self.basis,
            charge=self.charge,
            verbose=0,
        )
        field = scf.RHF(molecule)
        if orbitals is None:
            field.kernel()
            guess = field.mo_coeff
        else:
            guess = _orthonormal(orbitals, molecule.intor("int1e_ovlp"))
            field.mo_coeff = guess
            field._eri = molecule.intor("int2e", aosym="s8")
        solver: Any = mcscf.CASSCF(field, 2, 2)
        solver.fcisolver = fci.solver(molecule, singlet=True)
        solver = solver.state_average_([0.5, 0.5])
        solver.conv_tol = self.tolerance
        solver.kernel(guess)
        if not solver.converged:
            raise OracleError(
                f"{self.method} did not converge; leave the structure out, or start from the "
                "orbitals of a structure nearer to it"
            )
        if orbitals is not None:
            _refuse_other_orbitals(solver, guess, self.method)
        return Solved(solver, np.array(solver.e_states) * HARTREE, solver.mo_coeff)


@dataclass(frozen=True, eq=False)
class Solved:
    """Wave functions at one structure; gradients and coupling are computed when asked for."""

    solver: Any  # of PySCF
    energies: Array  # (2,) eV
    orbitals: Array  # to start a similar structure from

    def derivatives(
        self, gradients: tuple[int, ...] = (0, 1), *, coupling: bool = True
    ) -> tuple[dict[int, Array], Array | None]:
        """Gradients (n, 3) eV/Å by state, and ⟨0|∇1⟩ (n, 3) 1/Å without its overlap part.

        Electronic translation factors are left out of the coupling, which makes it translate.
        """
        with _stored_integrals(self.solver.mol):
            method = self.solver.nuc_grad_method()
            slopes = {s: method.kernel(state=s) * (HARTREE / BOHR) for s in gradients}
            vector = None
            if coupling:
                couplings = self.solver.nac_method()
                # PySCF's (i, j) is ⟨j|∇i⟩
                vector = couplings.kernel(state=(1, 0), use_etfs=True) / BOHR
        return slopes, vector

    def share(self) -> tuple[float, float]:
        """p of the head of this file, and how much of ab the two states hold, 1 at best."""
        active = self.solver.fcisolver.make_rdm1(self.solver.ci, 2, self.solver.nelecas)
        _, turn = np.linalg.eigh(active)
        mixed = [2 * (turn.T @ np.asarray(c) @ turn)[0, 1] ** 2 for c in self.solver.ci]
        return float(mixed[0] / sum(mixed)), float(sum(mixed))

    def diabats(self) -> Array:
        """E_PPS, E_OSS (eV) and Δ² (eV²)."""
        p, _ = self.share()
        low, high = self.energies
        gap = high - low
        return np.array([low + p * gap, high - p * gap, p * (1 - p) * gap**2])


def diabat_gradients(
    method: TwoStateCasscf, positions: Array, solved: Solved, *, step: float = 0.01
) -> Array:
    """Of E_PPS, E_OSS (eV/Å) and Δ² (eV²/Å): (3, n, 3), by central differences of `step` Å.

    They vanish along translations and rotations, so only the internal directions are moved along.
    """
    result = np.zeros((3, positions.size))
    for direction in _internal(positions):
        moved = step * direction.reshape(positions.shape)
        ahead = method.solve(positions + moved, solved.orbitals).diabats()
        behind = method.solve(positions - moved, solved.orbitals).diabats()
        result += np.outer((ahead - behind) / (2 * step), direction)
    return result.reshape(3, *positions.shape)


def _internal(positions: Array) -> Array:
    """Orthonormal directions (k, 3n) across all translations and rotations."""
    arms = positions - positions.mean(0)
    axes = np.eye(3)
    rigid = [np.tile(axis, len(positions)) for axis in axes]
    rigid += [np.cross(axis, arms).ravel() for axis in axes]
    _, sizes, rows = np.linalg.svd(np.array(rigid))
    rank = int((sizes > 1e-8 * sizes[0]).sum())
    result: Array = rows[rank:]
    return result


def _orthonormal(orbitals: Array, overlap: Array) -> Array:
    """The orbitals made orthonormal in a new basis (Löwdin)."""
    values, vectors = np.linalg.eigh(orbitals.T @ overlap @ orbitals)
    result: Array = orbitals @ (vectors / np.sqrt(values)) @ vectors.T
    return result


def _refuse_other_orbitals(solver: Any, guess: Array, method: str) -> None:
    """Compare the space of the two active orbitals with that of the guess."""
    active = slice(solver.ncore, solver.ncore + 2)
    overlap = solver.mol.intor("int1e_ovlp")
    found = np.linalg.svd(guess[:, active].T @ overlap @ solver.mo_coeff[:, active])[1][-1]
    if found < _SAME_ORBITALS:
        raise OracleError(
            f"{method}: the active orbitals are others than before (overlap {found:.2f}); end the "
            "trajectory here, or take shorter steps"
        )


@contextmanager
def _stored_integrals(molecule: Any) -> Iterator[None]:
    """Derivatives of the repulsion integrals computed once, not in every term of every gradient.

    PySCF evaluates them anew for each contraction. For a small molecule they fit into memory, and
    gradients and coupling take a quarter of the time. PySCF has no place for them, so its two ways
    to ask are answered here for as long as the context lasts.
    """
    from pyscf.grad import rhf

    size = molecule.nao
    packed = molecule.intor("int2e_ip1", comp=3, aosym="s2kl").reshape(3, size, size, -1)
    row, column = np.tril_indices(size)
    full = np.empty((3, size, size, size, size))
    full[..., row, column] = packed
    full[..., column, row] = packed
    start = molecule.ao_loc_nr()
    asked, contracted = molecule.intor, rhf.get_jk

    def intor(name: str, *args: Any, **options: Any) -> Any:
        if name != "int2e_ip1":
            return asked(name, *args, **options)
        i, j, k, m = options["shls_slice"][:4]
        return packed[:, start[i] : start[j], start[k] : start[m]]

    def coulomb_and_exchange(_: Any, density: Any) -> tuple[Array, Array]:
        density = np.asarray(density)
        stack = density.reshape(-1, size, size)
        coulomb = np.tensordot(stack, full, axes=((1, 2), (4, 3)))
        exchange = np.stack([np.tensordot(full, d, axes=((2, 3), (0, 1))) for d in stack])
        shape = (*density.shape[:-2], 3, size, size)
        return -coulomb.reshape(shape), -exchange.reshape(shape)

    molecule.intor, rhf.get_jk = intor, coulomb_and_exchange
    try:
        yield
    finally:
        del molecule.intor
        rhf.get_jk = contracted
