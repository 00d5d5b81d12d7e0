"""Labels out of ASE atoms and back."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from bayrace.data.frame import (
    DataError,
    LabelKeys,
    elements_of,
    frame_from_atoms,
    frame_to_atoms,
    isolated_energies,
    split_isolated,
)

STRESS = LabelKeys(None, None, "S", "V", None)


def copper(**info):
    atoms = bulk("Cu")
    atoms.info.update(info)
    return atoms


def test_round_trip_through_ase(keys, labelled_atoms):
    for atoms in labelled_atoms:
        frame = frame_from_atoms(atoms, keys=keys)
        again = frame_from_atoms(frame_to_atoms(frame), keys=keys)
        for name in ("numbers", "positions", "cell", "pbc", "forces"):
            np.testing.assert_array_equal(getattr(frame, name), getattr(again, name))
        assert again.energy == frame.energy
        assert again.config_type == frame.config_type
        assert (again.stress is None) == (frame.stress is None)


@pytest.mark.parametrize("shape", [(6,), (9,), (3, 3)])
def test_stress_in_every_layout(shape):
    tensor = np.array([[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]])
    value = np.arange(1.0, 7.0) if shape == (6,) else tensor.reshape(shape)
    frame = frame_from_atoms(copper(S=value), keys=STRESS)
    assert frame.stress.tolist() == [1, 2, 3, 4, 5, 6]


def test_virial_is_minus_stress_times_volume():
    atoms = copper(V=np.arange(1.0, 7.0))
    frame = frame_from_atoms(atoms, keys=STRESS)
    np.testing.assert_allclose(frame.stress, -np.arange(1.0, 7.0) / atoms.get_volume(), rtol=1e-14)


def test_virial_without_a_cell_is_refused():
    atoms = Atoms("Cu", info={"V": np.ones(6)})
    with pytest.raises(DataError, match="V needs a cell of volume > 0"):
        frame_from_atoms(atoms, keys=STRESS)


def test_stress_of_wrong_shape_is_refused():
    with pytest.raises(DataError, match=r"atoms, frame 3: S has shape \(4,\), expected 6 or 3x3"):
        frame_from_atoms(copper(S=np.ones(4)), keys=STRESS, index=3)


def test_stress_that_is_not_symmetric_is_refused():
    with pytest.raises(DataError, match="S is not symmetric"):
        frame_from_atoms(copper(S=np.arange(9.0)), keys=STRESS)


def test_forces_of_wrong_shape_are_refused():
    atoms = Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]])
    atoms.arrays["F"] = np.ones((2, 2))
    keys = LabelKeys(None, "F", None, None, None)
    with pytest.raises(DataError, match=r"F has shape \(2, 2\), expected \(2, 3\)"):
        frame_from_atoms(atoms, keys=keys)


def test_energy_per_atom_is_refused_as_total_energy():
    atoms = Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]])
    atoms.arrays["E"] = np.ones(2)
    with pytest.raises(DataError, match=r"E has shape \(2,\), expected one number"):
        frame_from_atoms(atoms, keys=LabelKeys("E", None, None, None, None))


def test_words_are_no_energy():
    atoms = Atoms("H", info={"E": "unknown"})
    with pytest.raises(DataError, match="E is 'unknown', not a number"):
        frame_from_atoms(atoms, keys=LabelKeys("E", None, None, None, None))


def test_required_key_lists_those_present():
    atoms = Atoms("H", info={"dft": 1.0})
    with pytest.raises(DataError, match="no label 'E'; present: dft"):
        frame_from_atoms(atoms, keys=LabelKeys("E", None, None, None, None), require_labels=True)


def test_labels_of_another_geometry_are_not_used(keys):
    atoms = bulk("Cu")
    atoms.calc = EMT()
    atoms.get_potential_energy()
    assert frame_from_atoms(atoms, keys=keys).energy is not None
    atoms.positions += 0.1
    assert frame_from_atoms(atoms, keys=keys).energy is None


def test_constraints_do_not_touch_force_labels(keys):
    atoms = Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]], constraint=FixAtoms([0]))
    atoms.calc = SinglePointCalculator(atoms, forces=np.ones((2, 3)))
    assert frame_from_atoms(atoms, keys=keys).forces.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_geometry_only(labelled_atoms):
    frame = frame_from_atoms(labelled_atoms[1], keys=None)
    assert frame.energy is None
    assert frame.forces is None
    assert frame.stress is None


def test_isolated_atoms_are_set_apart(make_frame):
    atom = {"numbers": np.array([1]), "positions": np.zeros((1, 3)), "forces": None}
    isolated = make_frame(**atom, energy=-13.6, config_type="IsolatedAtom")
    rest, energies = split_isolated([make_frame(), isolated])
    assert len(rest) == 1
    assert energies == {1: -13.6}
    other = make_frame(**atom, energy=-13.0, config_type="IsolatedAtom")
    with pytest.raises(DataError, match=r"isolated H has energy -13.0 eV here and -13.6 eV"):
        isolated_energies([isolated, other])
    with pytest.raises(DataError, match="an isolated atom has 3 atoms"):
        isolated_energies([make_frame()])
    with pytest.raises(DataError, match="an isolated atom has no energy"):
        isolated_energies([make_frame(**atom, energy=None)])


def test_elements_are_ascending(make_frame):
    assert elements_of([make_frame(), make_frame(numbers=np.array([6, 1, 1]))]) == (1, 6, 8)
    assert elements_of([]) == ()
