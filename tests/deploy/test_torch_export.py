"""The exported program against the ASE calculator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.data.frame import frame_from_atoms
from bayrace.deploy.torch_export import pair_inputs
from bayrace.potential.potential import Potential

from .engines import ELEMENTS, by_ase, structures


@pytest.fixture(scope="module")
def random_potential(make_potential: Callable[..., Potential]) -> Potential:
    return make_potential(seeds=(0, 1), elements=ELEMENTS)


def compared(potential: Potential, program: Callable[..., tuple[torch.Tensor, ...]], atoms: Atoms):
    expected = by_ase(potential, atoms)
    inputs = pair_inputs(potential, frame_from_atoms(atoms, keys=None))
    energy, energies, forces, virial, spread = (each.numpy() for each in program(*inputs))
    assert energy == pytest.approx(expected["energy"], abs=1e-9)
    np.testing.assert_allclose(energies, expected["energies"], atol=1e-9)
    np.testing.assert_allclose(forces, expected["forces"], atol=1e-9)
    assert spread == pytest.approx(expected["energy_epistemic"], rel=1e-9)
    if atoms.pbc.all():
        stress = -virial[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]] / atoms.get_volume()
        np.testing.assert_allclose(stress, expected["stress"], atol=1e-9)
    return inputs


def test_the_command_writes_what_torch_loads(random_potential: Potential, tmp_path: Path) -> None:
    """Also for other cells and other numbers of pairs than the structure it is made with."""
    atoms = structures()["triclinic"]
    random_potential.save(tmp_path / "model.bayrace")
    ase.io.write(tmp_path / "start.xyz", atoms)
    target = tmp_path / "model.pt2"
    command = ["export", str(tmp_path / "model.bayrace"), "--to", "torch-export"]
    refused = CliRunner().invoke(app, [*command, "-o", str(target)])
    assert refused.exit_code == 2
    assert "--structure" in refused.stderr
    command += ["--structure", str(tmp_path / "start.xyz"), "-o"]
    assert CliRunner().invoke(app, [*command, str(tmp_path / "model.pt")]).exit_code == 2
    result = CliRunner().invoke(app, [*command, str(target)])
    assert result.exit_code == 0, result.output
    program = torch.export.load(str(target)).module()
    counts = {compared(random_potential, program, atoms)[2].shape[1]}
    for scale, seed in ((0.9, 1), (1.15, 2)):
        other = atoms.copy()
        other.set_cell(atoms.cell.array * scale, scale_atoms=True)
        other.rattle(0.1, seed=seed)
        counts.add(compared(random_potential, program, other)[2].shape[1])
    assert len(counts) == 3
