"""Structures and an oracle that counts its calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ase.build import bulk

from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.label.oracles.ase import AseOracle

CALCULATOR = Path(__file__).with_name("counting.py")


@pytest.fixture
def metals() -> list[Frame]:
    """Ten structures of four atoms of copper."""
    frames = []
    for seed in range(10):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.05, seed=seed + 1)
        frames.append(frame_from_atoms(atoms, keys=None, source="metals.xyz", index=seed))
    return frames


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the oracle counts."""
    return tmp_path / "oracle.log"


@pytest.fixture
def counting(log: Path) -> Callable[..., AseOracle]:
    """A factory of oracles that count their calls in `log`."""

    def make(**arguments: object) -> AseOracle:
        return AseOracle(f"{CALCULATOR}:Counting", {"log": str(log), **arguments})

    return make
