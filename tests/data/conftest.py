"""Frames and files shared by the tests of the data layer."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from bayrace.data.frame import Frame, LabelKeys

DEFAULT_KEYS = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)


@pytest.fixture
def keys():
    return DEFAULT_KEYS


@pytest.fixture
def make_frame():
    """A labelled water molecule; keyword arguments replace its fields."""

    def make(**changes):
        atoms = molecule("H2O")
        fields = {
            "numbers": atoms.numbers.astype(np.int64),
            "positions": atoms.positions.copy(),
            "cell": np.zeros((3, 3)),
            "pbc": np.zeros(3, dtype=bool),
            "energy": -14.0,
            "forces": np.full((3, 3), 0.5),
            "stress": None,
            "config_type": "Default",
            "weight": 1.0,
            "source": "water.xyz",
            "index": 7,
        }
        return Frame(**{**fields, **changes})

    return make


@pytest.fixture
def labelled_atoms():
    """Four rattled structures with energy and forces, the crystals with stress."""
    random = np.random.default_rng(0)
    images = []
    for place, base in enumerate([molecule("CH3OH"), bulk("Si", cubic=True)] * 2):
        atoms = base.copy()
        atoms.rattle(0.05, seed=place)
        labels = {
            "energy": -10.0 * len(atoms) - place,
            "forces": random.normal(size=(len(atoms), 3)),
        }
        if atoms.pbc.all():
            labels["stress"] = random.normal(scale=0.01, size=6)
        atoms.calc = SinglePointCalculator(atoms, **labels)
        atoms.info["config_type"] = "crystal" if atoms.pbc.all() else "molecule"
        images.append(atoms)
    return images


@pytest.fixture
def xyz_file(tmp_path, labelled_atoms):
    path = tmp_path / "data.xyz"
    ase.io.write(path, labelled_atoms, format="extxyz")
    return path
