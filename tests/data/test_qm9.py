"""QM9 as published: files with their odd exponents, the archive, tables, and their statistics."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from bayrace.core.target import KNOWN, Target
from bayrace.core.units import HARTREE
from bayrace.data.dataset import Dataset
from bayrace.data.frame import DataError, Frame, LabelKeys, bare_frame
from bayrace.data.read import iterate_atoms, read_frames
from bayrace.data.statistics import target_references, target_statistics

WATER = """3
gdb 3\t799.58812\t437.90386\t282.94545\t1.8511\t6.31\t-0.2928\t0.0687\t0.3615\t19.0002\t0.021375\
\t-76.404702\t-76.401867\t-76.400922\t-76.422349\t6.002\t
O\t-0.0343604951\t 0.9775395708\t 7.6*^-3\t-0.589706
H\t 0.0647664923\t 2.0567*^-2\t 0.0015346341\t 0.294853
H\t 0.8717903737\t 1.3007924048\t 0.0006931336\t 0.294853
1671.4222\t3803.6305\t3907.698
O\tO
InChI=1S/H2O/h1H2\tInChI=1S/H2O/h1H2
"""


def keys(name: str) -> LabelKeys:
    return LabelKeys(name, None, None, None, None, forces_too=False)


def read(path: Path, name: str, **options: bool) -> list[Frame]:
    return read_frames(str(path), keys=keys(name), config_weights={}, **options)


def test_a_published_file(tmp_path: Path) -> None:
    path = tmp_path / "dsgdb9nsd_000003.xyz"
    path.write_text(WATER, encoding="utf-8")
    (frame,) = read(path, "u0")
    assert frame.numbers.tolist() == [8, 1, 1]
    assert frame.energy == pytest.approx(-76.404702 * HARTREE)
    assert frame.positions[0, 2] == pytest.approx(7.6e-3)
    assert frame.positions[1, 1] == pytest.approx(2.0567e-2)
    assert frame.forces is None
    assert read(path, "mu")[0].energy == pytest.approx(1.8511)
    ((_, _, atoms),) = iterate_atoms(str(path))
    assert atoms.info["gdb_id"] == 3
    with pytest.raises(DataError, match="no frame has the label 'dipole'"):
        read(path, "dipole")


def test_several_in_one_file_and_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "two.xyz"
    path.write_text(WATER + WATER.replace("gdb 3", "gdb 4"), encoding="utf-8")
    assert [atoms.info["gdb_id"] for _, _, atoms in iterate_atoms(str(path))] == [3, 4]
    assert [
        frame.index for frame in read_frames(f"{path}@1:", keys=keys("gap"), config_weights={})
    ] == [1]
    archive = tmp_path / "qm9.tar.bz2"
    with tarfile.open(archive, "w:bz2") as file:
        file.add(path, "dsgdb9nsd.xyz/two.xyz")
    assert [f.energy for f in read(archive, "gap")] == pytest.approx([0.3615 * HARTREE] * 2)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.xyz"
    path.write_text("\n".join(WATER.splitlines()[:3]), encoding="utf-8")
    with pytest.raises(DataError, match="announces 3 atoms"):
        read(path, "u0")


def test_a_table(tmp_path: Path) -> None:
    path = tmp_path / "qm9.npz"
    arrays = {
        "Z": np.array([[8, 1, 1, 0], [6, 8, 1, 1]], dtype=np.uint8),
        "R": np.arange(24, dtype=np.float32).reshape(2, 4, 3),
        "props": np.array([[0.5, 1.5], [0.25, 2.5]]),
        "prop_names": np.array(["gap", "mu"]),
    }
    np.savez(path, **arrays)
    frames = read(path, "gap")
    assert [len(frame.numbers) for frame in frames] == [3, 4]
    assert [frame.energy for frame in frames] == pytest.approx([0.5 * HARTREE, 0.25 * HARTREE])
    np.savez(path, **(arrays | {"props": np.zeros((2, 3))}))
    with pytest.raises(DataError, match="props"):
        read(path, "gap")


def molecules(count: int) -> list[Frame]:
    random = np.random.default_rng(0)
    found = []
    for place in range(count):
        size = int(random.integers(3, 9))
        numbers = random.choice([1, 6, 8], size).astype(np.int64)
        position = random.normal(size=(size, 3)) * 2
        found.append(
            bare_frame(
                numbers, position, np.zeros((3, 3)), np.zeros(3, bool), source="m", index=place
            )
        )
    return found


def labelled(values: list[float], frames: list[Frame]) -> list[Frame]:
    return [Frame(**{**vars(f), "energy": v}) for f, v in zip(frames, values, strict=True)]


def statistics(frames: list[Frame], target: Target) -> tuple[dict[int, float], tuple[float, ...]]:
    references = target_references(frames, target)
    data = Dataset(frames, elements=(1, 6, 8), cutoff=3.0, references=references)
    return references, target_statistics(data, target).shift


def test_elements_are_recovered_by_every_pooling() -> None:
    """Labels that are made of constants of the elements alone."""
    frames = molecules(40)
    own = {1: -3.0, 6: 5.0, 8: 2.0}
    sums = [sum(own[int(z)] for z in frame.numbers) for frame in frames]
    references, shift = statistics(labelled(sums, frames), KNOWN["alpha"])
    assert references == pytest.approx(own)
    assert shift == (0.0, 0.0, 0.0)
    means = [total / len(frame.numbers) for total, frame in zip(sums, frames, strict=True)]
    references, shift = statistics(labelled(means, frames), KNOWN["gap"])
    assert set(references.values()) == {0.0}
    assert shift == pytest.approx(tuple(own.values()))
    charge = {1: 1.0, 6: 6.0, 8: 8.0}
    extents = []
    for frame in frames:
        centre = np.average(frame.positions, axis=0, weights=frame.numbers)
        squares = ((frame.positions - centre) ** 2).sum(1) + 1.0
        per_atom = [
            charge[int(z)] * s + own[int(z)] for z, s in zip(frame.numbers, squares, strict=True)
        ]
        extents.append(float(sum(per_atom)))
    references, shift = statistics(labelled(extents, frames), KNOWN["r2"])
    assert references == pytest.approx(own)
    assert shift == pytest.approx(tuple(charge.values()))
