"""One test per kind of bad input, asserting on the message."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
from ase import Atoms

from bayrace.data.check import check_frame, check_frames, problems
from bayrace.data.frame import ISOLATED_TYPE, DataError, frame_from_atoms
from bayrace.data.read import read_frames


def with_value(array, value):
    changed = array.copy()
    changed[1, 2] = value
    return changed


def test_good_frames_pass(make_frame):
    check_frames([make_frame(), make_frame(energy=None), make_frame(forces=None)], need_forces=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_energy_must_be_finite(make_frame, value):
    with pytest.raises(
        DataError, match=rf"water.xyz, frame 7: energy is {value}; remove the label"
    ):
        check_frame(make_frame(energy=value))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_forces_must_be_finite(make_frame, value):
    frame = make_frame(forces=with_value(make_frame().forces, value))
    with pytest.raises(
        DataError, match=rf"frame 7: forces of atom 1 is {value} in direction z; remove"
    ):
        check_frame(frame)


def test_stress_must_be_finite(make_frame):
    with pytest.raises(DataError, match="frame 7: stress is nan; remove the label"):
        check_frame(make_frame(stress=np.array([0, 0, 0, np.nan, 0, 0])))


def test_positions_must_be_finite(make_frame):
    frame = make_frame(positions=with_value(make_frame().positions, np.nan))
    with pytest.raises(
        DataError, match="frame 7: positions of atom 1 is nan in direction z; remove the frame"
    ):
        check_frame(frame)


def test_shapes_must_match(make_frame):
    with pytest.raises(DataError, match=r"frame 7: forces has shape \(2, 3\), expected \(3, 3\)"):
        check_frame(make_frame(forces=np.ones((2, 3))))


def test_frame_without_atoms(make_frame):
    frame = make_frame(numbers=np.zeros(0, np.int64), positions=np.zeros((0, 3)), forces=None)
    with pytest.raises(DataError, match="frame 7: has 0 atoms"):
        check_frame(frame)


def test_atomic_number_must_exist(make_frame):
    with pytest.raises(DataError, match="frame 7: atom 0 has atomic number 0; correct its symbol"):
        check_frame(make_frame(numbers=np.array([0, 1, 1])))


def test_overlapping_atoms_are_named_with_their_distance(make_frame):
    positions = make_frame().positions
    positions[2] = positions[0] + [0.0, 0.0, 0.12]
    with pytest.raises(
        DataError, match=r"frame 7: atoms 0 \(O\) and 2 \(H\) are 0.12 Å apart, closer than 0.3 Å"
    ):
        check_frame(make_frame(positions=positions))


def test_overlap_with_a_periodic_image(make_frame):
    cell = np.diag([10.0, 10.0, 10.0])
    positions = np.array([[0.1, 0, 0], [5, 5, 5], [10.0, 0, 0]])
    frame = make_frame(positions=positions, cell=cell, pbc=np.array([True, False, False]))
    with pytest.raises(
        DataError, match=r"atoms 0 \(O\) and 2 \(H\) \(a periodic image\) are 0.1 Å"
    ):
        check_frame(frame)
    check_frame(make_frame(positions=positions, cell=cell, pbc=np.zeros(3, bool)))


@pytest.mark.parametrize(
    ("cell", "pbc", "message"),
    [
        (np.zeros((3, 3)), [1, 1, 1], 'pbc="T T T" .* span a volume of 0; give the cell'),
        (np.diag([5.0, 5.0, 0.0]), [1, 1, 1], "span a volume of 0"),
        (np.array([[5.0, 0, 0], [5, 0, 0], [0, 0, 5]]), [1, 1, 1], "span a volume of"),
        (np.array([[5.0, 0, 0], [5, 0, 0], [0, 0, 5]]), [1, 1, 0], 'pbc="T T F" .* span an area'),
        (np.diag([5.0, 5.0, 0.0]), [0, 0, 1], 'pbc="F F T" .* span a length of 0'),
    ],
)
def test_degenerate_periodic_cells(make_frame, cell, pbc, message):
    with pytest.raises(DataError, match=f"water.xyz, frame 7: .*{message}"):
        check_frame(make_frame(cell=cell, pbc=np.array(pbc, dtype=bool)))


def test_degenerate_vectors_of_open_directions_are_fine(make_frame):
    check_frame(make_frame(cell=np.diag([8.0, 8.0, 0.0]), pbc=np.array([True, True, False])))


def test_no_forces_anywhere(make_frame):
    frames = [make_frame(forces=None), make_frame(forces=None)]
    with pytest.raises(
        DataError, match=r"water.xyz: none of the 2 frames has a label for forces; set forces_key"
    ):
        check_frames(frames, need_forces=True)
    check_frames(frames, need_forces=False)


def test_no_energy_or_stress_anywhere(make_frame):
    with pytest.raises(DataError, match="label for stress"):
        check_frames([make_frame()], need_forces=True, need_stress=True)
    with pytest.raises(DataError, match="label for energy"):
        check_frames([make_frame(energy=None)], need_forces=True, need_energy=True)


def test_element_that_training_did_not_have(make_frame):
    with pytest.raises(
        DataError,
        match="frame 7: has O, which the training data did not have; known elements: H, C",
    ):
        check_frames([make_frame()], need_forces=False, elements=(1, 6))


def test_no_frames():
    with pytest.raises(DataError, match="no frames"):
        check_frames([], need_forces=False)


def test_all_problems_are_counted_once_a_frame(make_frame):
    bad = make_frame(energy=np.nan, forces=np.full((3, 3), np.nan))
    assert len(problems([bad, make_frame(), bad], need_forces=True)) == 2
    with pytest.raises(DataError, match=r"energy is nan.*\(and 2 more problems; bayrace validate"):
        check_frames([bad, bad, bad], need_forces=True)


def test_two_problems_are_both_told(make_frame):
    """Energies and forces under keys of their own are the usual pair."""
    bare = make_frame(energy=None, forces=None)
    with pytest.raises(DataError, match=r"label for energy(.|\n)*label for forces"):
        check_frames([bare], need_energy=True, need_forces=True)


def test_keys_that_look_like_labels_are_listed_for_all_files(tmp_path, labelled_atoms, keys):
    for name, energy, forces in (("a", "REF_energy", "REF_forces"), ("b", "dft_e", "DFT_grad")):
        images = []
        for atoms in labelled_atoms:
            plain = atoms.copy()
            plain.info |= {energy: atoms.get_potential_energy(), "charge": 0}
            plain.arrays[forces] = atoms.get_forces()
            images.append(plain)
        ase.io.write(tmp_path / f"{name}.xyz", images, format="extxyz")
    paths = [tmp_path / "a.xyz", tmp_path / "b.xyz"]
    frames = read_frames(paths, keys=keys, config_weights={})
    energy, forces = problems(frames, need_energy=True, need_forces=True)
    assert f"REF_energy in {paths[0]}; dft_e in {paths[1]}" in energy
    assert f"REF_forces in {paths[0]}; DFT_grad in {paths[1]}" in forces
    assert "charge" not in energy


def test_files_without_anything_like_a_label_give_no_hint(tmp_path, labelled_atoms, keys):
    ase.io.write(tmp_path / "bare.xyz", [atoms.copy() for atoms in labelled_atoms])
    frames = read_frames(tmp_path / "bare.xyz", keys=keys, config_weights={})
    (only,) = problems(frames, need_forces=True)
    assert "look like it" not in only


def test_reading_counts_all_bad_frames(tmp_path, labelled_atoms, keys):
    for atoms in labelled_atoms[1:]:
        atoms.calc.results["energy"] = np.nan
    ase.io.write(tmp_path / "bad.xyz", labelled_atoms, format="extxyz")
    with pytest.raises(DataError, match=r"frame 1: .*\(and 2 more problems; bayrace validate"):
        read_frames(tmp_path / "bad.xyz", keys=keys, config_weights={})


@pytest.mark.parametrize("spelling", ["isolated_atom", "IsolatedAtom", "isolated atom"])
def test_spellings_of_isolated_atoms(spelling):
    atoms = Atoms("H", info={"config_type": spelling})
    assert frame_from_atoms(atoms, keys=None).config_type == ISOLATED_TYPE
    other = Atoms("H", info={"config_type": "isolated_atoms_of_helium"})
    assert frame_from_atoms(other, keys=None).config_type == "isolated_atoms_of_helium"
