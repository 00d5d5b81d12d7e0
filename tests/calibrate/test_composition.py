"""Factors of energies by composition, and powers that are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.calibrate import scale
from bayrace.calibrate.calibration import Calibration
from bayrace.calibrate.fit import Powers, fit_calibration
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame, bare_frame

SALT, SILICON, MIXED = (11, 17), (14, 14, 14), (14, 11, 17, 14)


def made(
    kinds: Sequence[tuple[int, ...]], error: np.ndarray, std: np.ndarray
) -> tuple[list[Frame], Prediction]:
    """Structures of these atoms with energies that are wrong by `error`, and their σ, eV."""
    frames = [
        replace(
            bare_frame(
                np.array(kind),
                np.zeros((len(kind), 3)),
                np.zeros((3, 3)),
                np.zeros(3, dtype=bool),
                source="made",
            ),
            energy=float(each),
        )
        for kind, each in zip(kinds, error, strict=True)
    ]
    variance = torch.from_numpy(np.asarray(std, dtype=np.float64) ** 2)
    zero, atoms = torch.zeros_like(variance), sum(map(len, kinds))
    eye = torch.eye(3, dtype=torch.float64).repeat(atoms, 1, 1)
    prediction = Prediction(
        energy=Uncertain(zero, zero, variance),
        forces=Uncertain(eye.new_zeros(atoms, 3), 0 * eye, eye),
        stress=None,
        atomic_energy=eye.new_zeros(atoms),
        structure_index=torch.arange(len(kinds)).repeat_interleave(
            torch.tensor([len(kind) for kind in kinds])
        ),
        atomic_epistemic=eye.new_ones(atoms),
    )
    return frames, prediction


def applied(fitted: Calibration, kinds: Sequence[tuple[int, ...]], std: np.ndarray) -> Prediction:
    _, raw = made(kinds, np.zeros(len(kinds)), std)
    return fitted.apply(raw, np.concatenate([np.array(kind) for kind in kinds]))


def test_every_composition_gets_its_factor() -> None:
    """Salt is 0.3 and silicon 2 times as wrong as said; a mixture has the mean square."""
    random = np.random.default_rng(0)
    kinds = [SALT, SILICON] * 300
    factor = np.tile([0.3, 2.0], 300)
    fitted = fit_calibration(
        [made(kinds, factor * random.normal(size=600), np.ones(600))], method="scale-element"
    )
    assert fitted.by_element
    found = applied(fitted, [SALT, SILICON, MIXED], np.ones(3))
    expected = np.array([0.3, 2.0, np.sqrt((0.3**2 + 2.0**2) / 2)])
    assert found.energy.std.numpy() == pytest.approx(expected, rel=0.1)
    assert found.atomic_epistemic is not None
    squares = found.energy.total[found.structure_index]
    torch.testing.assert_close(found.atomic_epistemic, squares)


def test_few_structures_lean_on_the_factor_of_all() -> None:
    random = np.random.default_rng(1)
    z = np.concatenate([random.normal(size=400), [3.0]])
    part = (np.arange(401) == 400).astype(float)
    found = scale.by_composition(z, {14: 1 - part, 17: part})
    assert found[14] == pytest.approx(1.0, abs=0.1)
    assert 1.0 < found[17] < 1.9
    assert scale.by_composition(z, {14: np.ones(401)}) == {}


def test_a_known_power_is_kept_and_counts_energies_by_atom() -> None:
    """Errors that grow with the root of σ are known at every size, and as σ with the size."""
    random = np.random.default_rng(2)
    std = 10 ** random.uniform(-2, 1, size=2000)
    kinds = [SALT] * 2000
    error = 0.1 * np.sqrt(std) * random.normal(size=2000)
    fitted = fit_calibration(
        [made(kinds, error, std)], method="scale", powers=Powers(energy=0.5, forces=1.0)
    )
    levels = np.array([0.01, 1.0, 10.0])
    found = applied(fitted, [SALT] * 3, levels).energy.std.numpy()
    assert found == pytest.approx(0.1 * np.sqrt(levels), rel=0.05)
    twice = applied(fitted, [(*SALT, *SALT)] * 3, 2 * levels).energy.std.numpy()
    assert twice == pytest.approx(2 * found)
    text = Calibration.from_json(fitted.to_json())
    assert text == fitted


def test_what_knows_one_factor_says_so() -> None:
    random = np.random.default_rng(3)
    fitted = fit_calibration(
        [made([SALT, SILICON] * 20, random.normal(size=40), np.ones(40))], method="scale-element"
    )
    assert fitted.energy is not None
    with pytest.raises(ValueError, match=r"an engine knows one factor .* --method scale"):
        fitted.energy.one_factor("an engine")


def test_a_method_that_finds_a_power_finds_it_from_the_known_one() -> None:
    random = np.random.default_rng(4)
    frames, raw = made([SALT] * 400, random.normal(size=400), np.ones(400))
    level = 10 ** random.uniform(-2, 1, size=(800, 1))
    wrong = (level**0.6 * random.normal(size=(800, 3))).reshape(400, 2, 3)
    frames = [replace(frame, forces=each) for frame, each in zip(frames, wrong, strict=True)]
    spread = torch.from_numpy(level**2)[:, :, None]
    forces = replace(raw.forces, epistemic=spread * raw.forces.epistemic)
    for known in (1.0, 0.5):
        batches = [(frames, replace(raw, forces=forces))]
        found = fit_calibration(batches, method="power", powers=Powers(forces=known)).forces
        assert found is not None
        assert found.power == pytest.approx(0.6, abs=0.05)
        std = found.apply(forces).level.numpy()
        assert std == pytest.approx(level[:, 0] ** 0.6, rel=0.2)
