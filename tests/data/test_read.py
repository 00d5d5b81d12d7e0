"""Reading files, globs and selections, and refusing the unreadable."""

from __future__ import annotations

import gzip

import ase.io
import numpy as np
import pytest
from ase import Atoms

from bayrace.data.frame import LabelKeys
from bayrace.data.read import DataError, read_frames


def read(paths, keys=None, config_weights=None, **options):
    keys = keys or LabelKeys(None, None, None, None, None)
    return read_frames(paths, keys=keys, config_weights=config_weights or {}, **options)


def renamed(labelled_atoms, **names):
    """The same structures with their labels under other names and no calculator."""
    images = []
    for atoms in labelled_atoms:
        bare = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
        for name, key in names.items():
            value = atoms.calc.results.get(name)
            if value is not None:
                (bare.arrays if name == "forces" else bare.info)[key] = value
        images.append(bare)
    return images


def test_extended_xyz_with_calculator_results(xyz_file, labelled_atoms):
    frames = read(xyz_file)
    assert [frame.index for frame in frames] == [0, 1, 2, 3]
    for frame, atoms in zip(frames, labelled_atoms, strict=True):
        assert frame.energy == pytest.approx(atoms.calc.results["energy"], rel=1e-12)
        np.testing.assert_allclose(frame.forces, atoms.calc.results["forces"], atol=1e-7)
        np.testing.assert_allclose(frame.positions, atoms.positions, atol=1e-7)
        np.testing.assert_array_equal(frame.numbers, atoms.numbers)
        assert frame.pbc.tolist() == atoms.pbc.tolist()
    assert frames[0].stress is None
    np.testing.assert_allclose(
        frames[1].stress, labelled_atoms[1].calc.results["stress"], atol=1e-12
    )
    assert [frame.config_type for frame in frames] == ["molecule", "crystal"] * 2
    assert frames[3].origin == f"{xyz_file}, frame 3"


def test_configured_keys(tmp_path, labelled_atoms):
    path = tmp_path / "named.xyz"
    images = renamed(labelled_atoms, energy="REF_energy", forces="REF_forces", stress="REF_stress")
    ase.io.write(path, images, format="extxyz")
    keys = LabelKeys("REF_energy", "REF_forces", "REF_stress", None, None)
    frames = read(path, keys)
    assert frames[1].energy == pytest.approx(labelled_atoms[1].calc.results["energy"])
    np.testing.assert_allclose(
        frames[1].forces, labelled_atoms[1].calc.results["forces"], atol=1e-7
    )
    np.testing.assert_allclose(
        frames[1].stress, labelled_atoms[1].calc.results["stress"], atol=1e-12
    )
    assert frames[0].stress is None
    unlabelled = read(path)
    assert all(frame.energy is None and frame.forces is None for frame in unlabelled)


def test_names_that_ase_moves_to_the_calculator_can_be_configured(xyz_file, labelled_atoms):
    frames = read(xyz_file, LabelKeys("energy", "forces", "stress", None, None))
    assert frames[2].energy == pytest.approx(labelled_atoms[2].calc.results["energy"])
    assert frames[2].forces is not None
    assert frames[3].stress is not None


def test_unknown_key_lists_those_present(tmp_path, labelled_atoms):
    path = tmp_path / "named.xyz"
    ase.io.write(
        path, renamed(labelled_atoms, energy="dft_energy", forces="dft_forces"), format="extxyz"
    )
    with pytest.raises(
        DataError,
        match=r"named.xyz: no frame has the label 'REF_energy'; "
        r"present: dft_energy, dft_forces; set the key",
    ):
        read(path, LabelKeys("REF_energy", None, None, None, None))
    frames = read(path, LabelKeys("REF_energy", None, None, None, None), require_labels=False)
    assert len(frames) == 4


def test_energy_only_and_force_only_frames(tmp_path):
    path = tmp_path / "partial.xyz"
    path.write_text(
        '1\nProperties=species:S:1:pos:R:3 energy=-3 pbc="F F F"\nH 0 0 0\n'
        '1\nProperties=species:S:1:pos:R:3:forces:R:3 pbc="F F F"\nH 0 0 0 1 2 3\n'
    )
    first, second = read(path)
    assert first.energy == -3.0
    assert first.forces is None
    assert second.energy is None
    assert second.forces.tolist() == [[1, 2, 3]]


def test_config_weights(xyz_file):
    frames = read(xyz_file, config_weights={"crystal": 2.5})
    assert [frame.weight for frame in frames] == [1.0, 2.5, 1.0, 2.5]


def test_globs_and_lists_are_read_in_order(tmp_path, labelled_atoms):
    for name, atoms in zip("badc", labelled_atoms, strict=True):
        ase.io.write(tmp_path / f"{name}.xyz", atoms, format="extxyz")
    frames = read([str(tmp_path / "[ab].xyz"), tmp_path / "d.xyz"])
    assert [frame.source[-5:] for frame in frames] == ["a.xyz", "b.xyz", "d.xyz"]


def test_glob_without_match_names_the_pattern(tmp_path):
    with pytest.raises(DataError, match=r"\*\.xyz: no file matches this pattern"):
        read(str(tmp_path / "*.xyz"))


@pytest.mark.parametrize(
    ("selection", "indices"),
    [(":2", [0, 1]), ("1:", [1, 2, 3]), ("::2", [0, 2]), ("-2:", [2, 3]), ("3", [3]), ("-1", [3])],
)
def test_selections_keep_the_number_of_the_frame_in_its_file(xyz_file, selection, indices):
    frames = read(f"{xyz_file}@{selection}")
    assert [frame.index for frame in frames] == indices
    everything = read(xyz_file)
    for frame in frames:
        np.testing.assert_array_equal(frame.positions, everything[frame.index].positions)


def test_selection_beyond_the_file_is_refused(xyz_file):
    with pytest.raises(DataError, match="no frame 9; it has 4 frames"):
        read(f"{xyz_file}@9")
    with pytest.raises(DataError, match=rf"{xyz_file.name}: the selection takes none of its 4 "):
        read(f"{xyz_file}@50:")


def test_selection_that_is_none_is_refused(xyz_file):
    with pytest.raises(DataError, match=r"cannot select frames by 'all'; write .*data.xyz@:100"):
        read(f"{xyz_file}@all")


def test_other_ase_formats(tmp_path, labelled_atoms):
    path = tmp_path / "run.traj"
    ase.io.write(path, labelled_atoms)
    frames = read(f"{path}@1:3")
    assert [frame.index for frame in frames] == [1, 2]
    assert frames[0].energy == labelled_atoms[1].calc.results["energy"]
    np.testing.assert_array_equal(frames[0].forces, labelled_atoms[1].calc.results["forces"])


def test_compressed_xyz(tmp_path, xyz_file):
    path = tmp_path / "data.xyz.gz"
    path.write_bytes(gzip.compress(xyz_file.read_bytes()))
    assert len(read(path)) == 4
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="damaged or truncated"):
        read(path)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"absent.xyz: no such file; the current folder is"):
        read(tmp_path / "absent.xyz")


def test_empty_file(tmp_path):
    path = tmp_path / "empty.xyz"
    path.write_text("")
    with pytest.raises(DataError, match=r"empty.xyz: the file is empty"):
        read(path)
    path.write_text("\n\n")
    with pytest.raises(DataError, match=r"empty.xyz: no frames"):
        read(path)


def test_unknown_file_type(tmp_path):
    path = tmp_path / "notes.unknown"
    path.write_text("nothing of interest\n")
    with pytest.raises(
        DataError, match=r"notes.unknown: ASE does not know the file type 'unknown'; convert"
    ):
        read(path)


def test_truncated_last_frame(xyz_file):
    lines = xyz_file.read_text().splitlines(keepends=True)
    xyz_file.write_text("".join(lines[:-3]))
    with pytest.raises(
        DataError, match=r"data.xyz, frame 3: announces 8 atoms but has 5; the file is truncated"
    ):
        read(xyz_file)


def test_file_cut_in_the_middle_of_a_line(xyz_file):
    xyz_file.write_text(xyz_file.read_text().rstrip()[:-40])
    with pytest.raises(DataError, match=r"data.xyz, frame 3: .*truncated"):
        read(xyz_file)


def test_short_frame_in_the_middle(xyz_file):
    lines = xyz_file.read_text().splitlines(keepends=True)
    del lines[4]
    xyz_file.write_text("".join(lines))
    with pytest.raises(
        DataError, match=r"data.xyz, frame 1: expected the number of atoms, found .*Lattice"
    ):
        read(xyz_file)


def test_blank_line_between_frames_does_not_lose_the_rest(xyz_file):
    lines = xyz_file.read_text().splitlines(keepends=True)
    lines.insert(8, "\n")
    xyz_file.write_text("".join(lines))
    with pytest.raises(DataError, match=r"data.xyz, frame 1: starts with a blank line"):
        read(xyz_file)


def test_trailing_blank_lines_are_harmless(xyz_file):
    xyz_file.write_text(xyz_file.read_text() + "\n\n")
    assert len(read(xyz_file)) == 4


def test_bad_frames_are_refused_on_reading_unless_told_otherwise(tmp_path):
    path = tmp_path / "nan.xyz"
    path.write_text('1\nProperties=species:S:1:pos:R:3 energy=nan pbc="F F F"\nH 0 0 0\n')
    with pytest.raises(DataError, match=r"nan.xyz, frame 0: energy is nan; remove the label"):
        read(path)
    assert len(read(path, check=False)) == 1
