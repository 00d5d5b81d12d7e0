"""Two states by CASSCF: slopes are slopes of the energies, diabats give the adiabats back."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyscf")

from bayrace.label.oracle import OracleError
from bayrace.label.oracles.casscf import TwoStateCasscf, diabat_gradients
from bayrace.simulate.hopping.surfaces import two_states

METHOD = TwoStateCasscf((7, 6, 1, 1, 1, 1), charge=1, basis="sto-3g", tolerance=1e-11)
TWISTED = np.array(
    [
        [0.0, 0.02, 0.0],
        [0.0, 0.0, 1.38],
        [0.80, 0.48, -0.48],
        [-0.82, -0.45, -0.51],
        [0.60, -0.70, 1.93],
        [-0.66, 0.62, 1.90],
    ]
)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_energies_gradients_coupling_and_diabats() -> None:
    solved = METHOD.solve(TWISTED)
    gradients, coupling = solved.derivatives()
    pps, oss, square = solved.diabats()
    low, high = np.linalg.eigvalsh([[pps, np.sqrt(square)], [np.sqrt(square), oss]])
    np.testing.assert_allclose([low, high], solved.energies, atol=1e-9)
    assert solved.share()[1] == pytest.approx(1.0, abs=1e-6)

    moved = np.zeros_like(TWISTED)
    moved[1, 1] = 1e-3
    ends = [METHOD.solve(TWISTED + s * moved, solved.orbitals).energies for s in (1, -1)]
    slopes = (ends[0] - ends[1]) / 2e-3
    assert slopes == pytest.approx([gradients[s][1, 1] for s in (0, 1)], abs=1e-3)

    parts = diabat_gradients(METHOD, TWISTED, solved)
    total = gradients[0] + gradients[1]
    np.testing.assert_allclose(parts[0] + parts[1], total, atol=0.05)
    pieces = (parts[0].reshape(1, -1), parts[1].reshape(1, -1), np.zeros((1, 18)))
    slope_of_coupling = parts[2].reshape(1, -1) / (2 * np.sqrt(square))
    values = np.array([[pps], [oss], [np.sqrt(square)]])
    _, composed, _ = two_states(*values, (pieces[0], pieces[1], slope_of_coupling))
    np.testing.assert_allclose(composed[0, 0], gradients[0].ravel(), atol=0.05)
    assert coupling is not None
    np.testing.assert_allclose(coupling.sum(0), 0.0, atol=1e-8)  # it translates


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_other_active_orbitals_than_those_given_are_refused() -> None:
    """A guess with a core orbital among the active ones ends in those of the molecule again."""
    solved = METHOD.solve(TWISTED)
    assert METHOD.solve(TWISTED, solved.orbitals).energies == pytest.approx(solved.energies)
    exchanged = solved.orbitals.copy()
    exchanged[:, [6, 7]] = exchanged[:, [7, 6]]
    with pytest.raises(OracleError, match="active orbitals are others than before"):
        METHOD.solve(TWISTED, exchanged)
