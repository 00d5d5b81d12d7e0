"""How σ_E grows with the system: independent cells add their noise, replicas repeat one error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.data.frame import Frame, bare_frame
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.models.race.start import NOISE_GAIN
from bayrace.potential.potential import Potential
from bayrace.testing import EXAMPLES

Make = Callable[..., Potential]

ELEMENTS = (1, 8)
SIZES = (64, 128, 256, 512)
LATTICE = 1.9  # Å
LOUD = 60.0
JOINT = NoiseSpec("joint", "extensive", "equivariant", stress=False)
SHALLOW = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=8)


def potential_of(make: Make, label: str) -> Potential:
    bare = make(noise=SHALLOW if label == "shallow" else JOINT, elements=ELEMENTS, cutoff=3.0)
    model = Race(bare.spec)
    params = model.init(1, dtype=torch.float64)
    for name, value in params.items():
        if name.endswith("readout.scalars"):
            value[:, 1:] *= LOUD / NOISE_GAIN  # heads that differ from atom to atom
    return replace(bare, posterior=EXAMPLES[label](model, params))


def crystal(atoms: int, *, seed: int, rattle: float = 0.25) -> Frame:
    """Two elements by turns on a simple cubic lattice of 4 × 4 columns, every atom displaced."""
    random = np.random.default_rng(seed)
    repeats = np.array([4, 4, atoms // 16])
    grid = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), -1).reshape(-1, 3)
    return bare_frame(
        np.where(grid.sum(1) % 2 == 0, *ELEMENTS).astype(np.int64),
        grid * LATTICE + rattle * random.normal(size=grid.shape),
        np.diag(repeats * LATTICE),
        np.ones(3, dtype=bool),
        source="crystal",
        index=seed,
    )


def replicated(frame: Frame, times: int) -> Frame:
    """The same cell `times` times along its last vector."""
    steps = np.arange(times)[:, None, None] * frame.cell[2]
    return replace(
        frame,
        numbers=np.tile(frame.numbers, times),
        positions=(frame.positions + steps).reshape(-1, 3),
        cell=frame.cell * np.array([1, 1, times])[:, None],
    )


def test_noise_of_independent_cells_grows_as_the_root_of_their_size(make_potential: Make) -> None:
    potential = potential_of(make_potential, "point")
    cells = [crystal(size, seed=10 * size + k) for size in SIZES for k in range(4)]
    variance = potential.predict(cells).energy.aleatoric.reshape(len(SIZES), 4)
    per_root = (variance / torch.tensor(SIZES, dtype=torch.float64)[:, None]).sqrt()
    assert float((per_root / per_root.mean() - 1).abs().max()) < 0.1
    exponent = np.polyfit(np.log(SIZES), variance.mean(1).sqrt().log().numpy(), 1)[0]
    assert exponent == pytest.approx(0.5, abs=0.02)
    assert float(per_root[0].std() / per_root[0].mean()) > 3e-3  # the cells do differ


@pytest.mark.parametrize("label", ["ensemble", "swag", "llpr", "shallow", "distance"])
def test_replicas_repeat_one_error(make_potential: Make, label: str) -> None:
    """Epistemic σ ∝ N: the weights are wrong in the same way everywhere. Aleatoric: ∝ √N."""
    potential = potential_of(make_potential, label)
    cell = crystal(64, seed=0)
    found = potential.predict([replicated(cell, times) for times in (1, 2, 4, 8)])
    times = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    epistemic = found.energy.epistemic.sqrt()
    assert float(epistemic[0]) > 1e-3
    torch.testing.assert_close(epistemic, epistemic[0] * times, rtol=1e-6, atol=0)
    aleatoric = found.energy.aleatoric.sqrt()
    torch.testing.assert_close(aleatoric, aleatoric[0] * times.sqrt(), rtol=1e-9, atol=0)
    assert (float(aleatoric[0]) > 0) == (label != "shallow")
    # forces are local: the same in every replica
    atoms = len(cell.numbers)
    for part in ("mean", "aleatoric", "epistemic"):
        value = getattr(found.forces, part)
        scale = float(value.abs().max())
        torch.testing.assert_close(
            value[atoms : 2 * atoms], value[:atoms], rtol=0, atol=1e-9 * scale
        )


@pytest.mark.parametrize("label", ["ensemble", "llpr", "shallow"])
def test_ignorance_of_cells_far_apart_in_kind_is_between(make_potential: Make, label: str) -> None:
    """Cells that differ share some of their error: σ grows faster than √N, not faster than N."""
    potential = potential_of(make_potential, label)
    sigma = potential.predict([crystal(size, seed=size) for size in SIZES]).energy.epistemic.sqrt()
    exponent = np.polyfit(np.log(SIZES), sigma.log().numpy(), 1)[0]
    assert 0.5 < exponent < 1.01
