"""rMD17 files: units, shapes and damage."""

from __future__ import annotations

import numpy as np
import pytest

from bayrace.core.units import KCAL_PER_MOL
from bayrace.data.frame import DataError, LabelKeys
from bayrace.data.read import read_frames

KEYS = LabelKeys(None, None, None, None, None)


def contents():
    random = np.random.default_rng(0)
    return {
        "nuclear_charges": np.array([8, 1, 1], dtype=np.uint8),
        "coords": np.arange(9.0).reshape(3, 3) + random.normal(scale=0.1, size=(4, 3, 3)),
        "energies": np.array([-1.0, -2.0, -3.0, -4.0]),
        "forces": random.normal(size=(4, 3, 3)),
    }


@pytest.fixture
def write(tmp_path):
    def save(**arrays):
        path = tmp_path / "rmd17_water.npz"
        np.savez(path, **arrays)
        return path

    return save


def read(path):
    return read_frames(path, keys=KEYS, config_weights={})


def test_kcal_become_electronvolts(write):
    arrays = contents()
    frames = read(write(**arrays))
    assert len(frames) == 4
    assert frames[2].energy == pytest.approx(-3.0 * 0.0433641153, rel=1e-9)
    np.testing.assert_allclose(frames[2].forces, arrays["forces"][2] * KCAL_PER_MOL, rtol=1e-14)
    np.testing.assert_array_equal(frames[2].positions, arrays["coords"][2])
    assert frames[2].numbers.tolist() == [8, 1, 1]
    assert not frames[2].pbc.any()
    assert frames[2].origin.endswith("rmd17_water.npz, frame 2")


def test_selection(write):
    path = write(**contents())
    assert [frame.index for frame in read(f"{path}@1:3")] == [1, 2]
    assert [frame.index for frame in read(f"{path}@-1")] == [3]
    with pytest.raises(DataError, match="no frame 4; it has 4 frames"):
        read(f"{path}@4")
    with pytest.raises(DataError, match=rf"{path.name}: the selection takes none of its 4 frames"):
        read(f"{path}@4:")


def test_missing_array_lists_those_present(write):
    arrays = contents()
    arrays["E"] = arrays.pop("energies")
    with pytest.raises(
        DataError, match="no array 'energies'; present: E, coords, forces, nuclear_charges"
    ):
        read(write(**arrays))


def test_shape_mismatch(write):
    arrays = contents()
    arrays["forces"] = arrays["forces"][:, :2]
    with pytest.raises(DataError, match=r"forces has shape \(4, 2, 3\), expected \(4, 3, 3\)"):
        read(write(**arrays))


def test_truncated_file(write):
    path = write(**contents())
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"not a readable npz file .* truncated"):
        read(path)


def test_pickled_objects_are_never_loaded(write):
    arrays = contents()
    arrays["energies"] = np.array([{"a": 1}], dtype=object)
    with pytest.raises(DataError, match="not a readable npz file"):
        read(write(**arrays))
