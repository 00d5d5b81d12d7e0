"""torch-sim's states against the ASE calculator; relaxation and dynamics of several at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

from bayrace.deploy.torch_sim import torch_sim_model
from bayrace.potential.potential import Potential

from .engines import ELEMENTS, by_ase, structures


@pytest.fixture(scope="module")
def ts() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_sim", reason="needs pip install 'bayrace[engines]'")


@pytest.fixture(scope="module")
def random_potential(make_potential: Callable[..., Potential]) -> Potential:
    return make_potential(seeds=(0, 1), elements=ELEMENTS)


@pytest.mark.parametrize("names", [("molecule",), ("triclinic", "small")])
def test_energies_forces_stress_and_sigma(
    random_potential: Potential, ts: Any, names: tuple[str, ...]
) -> None:
    atoms = [structures()[name] for name in names]
    model = torch_sim_model(random_potential)
    found = model(ts.io.atoms_to_state(atoms, model.device, model.dtype))
    expected = [by_ase(random_potential, each) for each in atoms]
    for name in ("energy", "energy_uncertainty"):
        np.testing.assert_allclose(found[name], [each[name] for each in expected], rtol=1e-9)
    for name in ("forces", "forces_uncertainty"):
        joined = np.concatenate([each[name] for each in expected])
        np.testing.assert_allclose(found[name], joined, atol=1e-9)
    if names != ("molecule",):
        voigt = found["stress"][:, [0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        np.testing.assert_allclose(voigt, [each["stress"] for each in expected], atol=1e-9)
        np.testing.assert_allclose(
            found["stress_uncertainty"],
            [each["stress_uncertainty"] for each in expected],
            rtol=1e-7,
        )


def test_relaxation_of_several(potential: Potential, alloy: Atoms, ts: Any) -> None:
    batch = []
    for seed in range(3):
        atoms = alloy.copy()
        atoms.rattle(0.1, seed=seed)
        batch.append(atoms)
    model = torch_sim_model(potential, uncertainty=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        final = ts.optimize(
            system=batch,
            model=model,
            optimizer=ts.optimizers.fire,
            convergence_fn=ts.generate_force_convergence_fn(
                force_tol=0.05, include_cell_forces=False
            ),
            max_steps=200,
        )
    assert final.forces.norm(dim=1).max() < 0.05
    assert torch.allclose(final.energy, final.energy.mean(), atol=1e-2)  # the same crystal


def test_dynamics_of_several(potential: Potential, alloy: Atoms, ts: Any) -> None:
    model = torch_sim_model(potential)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        final = ts.integrate(
            system=[alloy, alloy * (2, 1, 1)],
            model=model,
            integrator=ts.nve,
            n_steps=10,
            temperature=300,
            timestep=0.001,
        )
    assert final.positions.shape == (12, 3)
    assert model(final)["energy_uncertainty"].min() > 0
