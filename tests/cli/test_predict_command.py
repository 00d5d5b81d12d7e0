from __future__ import annotations

import ase.io
import numpy as np
import pytest

from bayrace.potential.potential import Potential


def test_ase_reads_the_output(bayrace, model, data, tmp_path):
    target = tmp_path / "out" / "predicted.xyz"
    result = bayrace("predict", model, data / "test.xyz", data / "hot.xyz@:2", "-o", target)
    assert result.exit_code == 0, result.output
    assert f"6 structures: {target}" in result.stdout
    written = ase.io.read(target, index=":")
    inputs = [*ase.io.read(data / "test.xyz", ":"), *ase.io.read(data / "hot.xyz", ":2")]
    expected = Potential.load(model).predict(inputs)  # one batch, as in the command
    energy, forces = expected.energy, expected.forces
    for index, (given, atoms) in enumerate(zip(inputs, written, strict=True)):
        mine = expected.owner == index
        assert atoms.get_potential_energy() == pytest.approx(float(energy.mean[index]))
        np.testing.assert_allclose(atoms.get_forces(), forces.mean[mine], rtol=1e-5, atol=1e-6)
        assert atoms.info["energy_uncertainty"] == pytest.approx(float(energy.std[index]))
        for name in ("forces_uncertainty", "forces_aleatoric"):
            np.testing.assert_allclose(atoms.arrays[name], forces.std[mine], rtol=1e-5)
        covariance = atoms.arrays["forces_covariance"].reshape(-1, 3, 3)
        np.testing.assert_allclose(covariance, forces.total[mine], rtol=1e-4, atol=1e-9)
        assert (atoms.arrays["forces_epistemic"] == 0).all()
        np.testing.assert_allclose(atoms.positions, given.positions, atol=1e-8)


def test_labels_of_the_input_are_kept_and_not_used(bayrace, model, data, tmp_path):
    bare = ase.io.read(data / "test.xyz", index=":")
    labelled = ase.io.read(data / "test.xyz", index=":")
    for atoms in bare:
        atoms.calc = None
    for atoms in labelled:
        atoms.calc.results["energy"] = 1.0
        atoms.info["note"] = "mine"
    energies = []
    for name, frames in (("bare", bare), ("labelled", labelled)):
        ase.io.write(tmp_path / f"{name}.xyz", frames, format="extxyz")
        target = tmp_path / f"{name}-out.xyz"
        assert bayrace("predict", model, tmp_path / f"{name}.xyz", "-o", target).exit_code == 0
        written = ase.io.read(target, index=":")
        energies.append([atoms.get_potential_energy() for atoms in written])
    assert energies[0] == energies[1]
    assert written[0].info["REF_energy"] == 1.0
    assert written[0].info["note"] == "mine"
    np.testing.assert_allclose(written[0].arrays["REF_forces"], labelled[0].get_forces())


def test_batches_do_not_change_the_result(bayrace, model, data, tmp_path):
    for batch in (1, 20_000):
        target = tmp_path / f"{batch}.xyz"
        bayrace("predict", model, data / "test.xyz", "-o", target, "--edge-budget", batch)
    one, many = (ase.io.read(tmp_path / f"{batch}.xyz", ":") for batch in (1, 20_000))
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(a.get_forces(), b.get_forces(), rtol=1e-4, atol=1e-5)


def test_periodic_structures_get_stress(bayrace, model, data, tmp_path):
    atoms = ase.io.read(data / "test.xyz", index=0)
    atoms.cell, atoms.pbc = [9.0, 9.5, 10.0], True
    ase.io.write(tmp_path / "cell.xyz", atoms, format="extxyz")
    result = bayrace("predict", model, tmp_path / "cell.xyz", "-o", tmp_path / "out.xyz")
    assert result.exit_code == 0, result.output
    written = ase.io.read(tmp_path / "out.xyz")
    expected = Potential.load(model).predict(atoms, stress=True)
    np.testing.assert_allclose(written.get_stress(), expected.stress.mean[0], rtol=1e-4, atol=1e-9)
    assert written.info["stress_uncertainty"].shape == (6,)


def test_the_input_is_not_overwritten(bayrace, model, data):
    result = bayrace("predict", model, data / "test.xyz", "-o", data / "test.xyz")
    assert result.exit_code == 2
    assert "is also an input" in result.stderr


def test_an_earlier_prediction_is_kept(bayrace, model, data, tmp_path):
    target = tmp_path / "predicted.xyz"
    target.write_text("mine")
    refused = bayrace("predict", model, data / "test.xyz", "-o", target)
    assert refused.exit_code == 2
    assert "exists; replace it with --overwrite" in refused.stderr
    assert target.read_text() == "mine"
    assert bayrace("predict", model, data / "test.xyz", "-o", target, "--overwrite").exit_code == 0
    assert target.read_text() != "mine"
