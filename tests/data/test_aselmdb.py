"""Databases of structures: what others wrote, what we write, and what is damaged."""

from __future__ import annotations

import zlib
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from bayrace.data.aselmdb import AseLmdb, open_aselmdb, write_aselmdb
from bayrace.data.convert import convert
from bayrace.data.embedded import embedded
from bayrace.data.frame import DataError, LabelKeys
from bayrace.data.read import read_frames
from bayrace.data.split import frame_fingerprint
from bayrace.data.store import Store

lmdb = pytest.importorskip("lmdb", reason="the extra `large` is not installed")

KEYS = LabelKeys(None, None, None, None, None)
THEIRS = Path(__file__).with_name("files") / "backends.aselmdb"  # by ase-db-backends 0.11


def written(path: Path, rows: dict[bytes, bytes]) -> None:
    file = lmdb.open(str(path), subdir=False, map_size=2**20, lock=False)
    with file, file.begin(write=True) as transaction:
        for key, value in rows.items():
            transaction.put(key, value)


def test_rows_of_ase_db_backends() -> None:
    """Ethanol and copper with EMT's results; a third row, between them, was deleted."""
    first, second = read_frames(str(THEIRS), keys=KEYS, config_weights={"solid": 2.0})
    assert (first.energy, first.config_type, first.weight) == (4.023973771585292, "cold", 1.0)
    assert first.forces is not None
    assert first.forces[0].tolist() == [-2.956502131297299, 2.446573875339179, 0.0]
    assert first.stress is None
    np.testing.assert_array_equal(first.positions, molecule("CH3CH2OH").positions)
    assert (second.config_type, second.weight, second.pbc.all()) == ("solid", 2.0, True)
    assert second.stress is not None
    assert second.stress[0] == pytest.approx(-0.034149, abs=1e-6)
    named = LabelKeys("DFT_energy", "DFT_forces", None, None, None)
    other = read_frames(f"{THEIRS}@:1", keys=named, config_weights={})[0]
    assert other.energy == -1.5
    np.testing.assert_array_equal(other.forces, first.positions)


@pytest.mark.parametrize("name", ["data.aselmdb", "data.db", "data.xyz"])
def test_nothing_is_lost_on_the_way(tmp_path: Path, name: str) -> None:
    source = f"{embedded('ethanol-train')}@:7"
    assert convert(source, tmp_path / name) == 7
    before = read_frames(source, keys=KEYS, config_weights={})
    after = read_frames(str(tmp_path / name), keys=KEYS, config_weights={})
    assert [frame_fingerprint(f) for f in before] == [frame_fingerprint(f) for f in after]
    assert [f.config_type for f in before] == [f.config_type for f in after]


def test_info_arrays_and_stress_come_back(tmp_path: Path) -> None:
    atoms = bulk("Si", cubic=True)
    atoms.info |= {"name": "a", "number": np.int64(3), "vector": np.arange(3.0)}
    atoms.arrays["depth"] = np.linspace(0, 1, len(atoms))
    stress = np.arange(6.0)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, stress=stress)
    write_aselmdb(tmp_path / "a.aselmdb", [atoms])
    convert(str(tmp_path / "a.aselmdb"), tmp_path / "b.xyz")
    found = ase.io.read(tmp_path / "b.xyz")
    assert (found.info["name"], found.info["number"]) == ("a", 3)
    np.testing.assert_array_equal(found.info["vector"], atoms.info["vector"])
    np.testing.assert_allclose(found.arrays["depth"], atoms.arrays["depth"], atol=1e-8)
    np.testing.assert_array_equal(found.get_stress(), stress)


def test_lists_in_place_of_arrays(tmp_path: Path) -> None:
    """As fairchem writes rows."""
    path = tmp_path / "lists.aselmdb"
    row = b'{"numbers":[1,8],"positions":[[0,0,0],[0,0,1.0]],"pbc":[true,true,true],'
    row += b'"cell":[[4,0,0],[0,4,0],[0,0,4]],"energy":-2,"forces":[[0,0,1],[0,0,-1]],"data":{}}'
    written(path, {b"1": zlib.compress(row), b"nextid": zlib.compress(b"2")})
    (frame,) = read_frames(str(path), keys=KEYS, config_weights={})
    assert (frame.energy, frame.cell[2, 2], frame.pbc.all()) == (-2.0, 4.0, True)
    assert frame.forces is not None
    assert frame.forces.tolist() == [[0, 0, 1], [0, 0, -1]]


def test_selections_across_files(tmp_path: Path) -> None:
    for name in "ab":
        convert(f"{embedded('ethanol-train')}@:5", tmp_path / f"{name}.aselmdb")
    store = Store(
        [f"{tmp_path}/a.aselmdb@3:", f"{tmp_path}/b.aselmdb"], keys=KEYS, config_weights={}
    )
    assert len(store) == 7
    assert [store.origin(place).rpartition("/")[2] for place in (0, 1, 2, 6)] == [
        "a.aselmdb, frame 3",
        "a.aselmdb, frame 4",
        "b.aselmdb, frame 0",
        "b.aselmdb, frame 4",
    ]
    assert frame_fingerprint(store.frame(0)) == frame_fingerprint(store.frame(5))


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.aselmdb"
    convert(f"{embedded('ethanol-train')}@:2", path)
    assert len(open_aselmdb(path)) == 2
    convert(f"{embedded('ethanol-train')}@:3", path)
    assert len(open_aselmdb(path)) == 3


def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.aselmdb"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(DataError, match=r"a\.aselmdb: cannot be read as LMDB"):
        AseLmdb(path)
    other = tmp_path / "b.aselmdb"
    bare = zlib.compress(b'{"numbers": [1]}')
    written(other, {b"1": b"not zlib", b"2": bare, b"nextid": zlib.compress(b"4")})
    rows = AseLmdb(other)
    with pytest.raises(DataError, match="row 1: damaged"):
        rows.row(0)
    with pytest.raises(DataError, match="frame 1: not a structure"):
        rows.row(1)
    with pytest.raises(DataError, match="frame 2: row 3 is missing"):
        rows.row(2)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\.cif; name it one of \.aselmdb"):
        convert(str(embedded("ethanol-train")), tmp_path / "a.cif")
