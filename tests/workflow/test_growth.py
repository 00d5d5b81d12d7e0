"""Powers of σ: found from errors that are known, and from nearer and farther structures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import bulk

from bayrace.calibrate.fit import Powers
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.potential.potential import Potential
from bayrace.testing.modules import TinySpec
from bayrace.workflow.growth import ENOUGH, distances, error_growth, power_of

SPEC = TinySpec((11, 14, 17), 4.5, seed=1)


def crystals(count: int) -> list[Frame]:
    """Salt and silicon in turns, more and more rattled."""
    frames = []
    for number in range(count):
        atoms = bulk("Si", "diamond", 5.4) * (2, 1, 1)
        if number % 2:
            atoms = bulk("NaCl", "rocksalt", 5.6) * (2, 1, 1)
        atoms.rattle(0.01 + 0.2 * number / count, seed=number)
        frames.append(frame_from_atoms(atoms, keys=None, index=number))
    return frames


def predicted(frames: Sequence[Frame], *, power: float) -> tuple[list[Frame], Prediction]:
    """σ from 0.01 to 10 eV per atom; errors grow to a power of it, and are larger of salt."""
    random = np.random.default_rng(0)
    levels = 10 ** random.uniform(-2, 1, size=len(frames))
    counts = np.array([len(frame.numbers) for frame in frames])
    size = np.array([5.0 if 11 in frame.numbers else 0.2 for frame in frames])
    errors = counts * size * levels**power * random.normal(size=len(frames))
    known = [replace(frame, energy=float(e)) for frame, e in zip(frames, errors, strict=True)]
    variance = torch.from_numpy((counts * levels) ** 2)
    zero, atoms = torch.zeros_like(variance), int(counts.sum())
    eye = torch.eye(3, dtype=torch.float64).repeat(atoms, 1, 1)
    prediction = Prediction(
        energy=Uncertain(zero, zero, variance),
        forces=Uncertain(eye.new_zeros(atoms, 3), 0 * eye, eye),
        stress=None,
        atomic_energy=eye.new_zeros(atoms),
        structure_index=torch.arange(len(frames)).repeat_interleave(torch.from_numpy(counts)),
    )
    return known, prediction


@pytest.mark.parametrize("power", [0.4, 1.0, 1.6])
def test_the_power_of_errors_is_found(power: float) -> None:
    assert power_of([predicted(crystals(800), power=power)]) == pytest.approx(power, rel=0.12)


def test_errors_that_say_nothing_leave_the_power_of_the_posterior() -> None:
    frames, prediction = predicted(crystals(40), power=1.0)
    same = torch.ones_like(prediction.energy.epistemic)
    flat = replace(prediction, energy=Uncertain(prediction.energy.mean, 0 * same, same))
    assert power_of([(frames, flat)]) == 1.0
    bare = [replace(frame, energy=None) for frame in frames]
    assert power_of([(bare, prediction)]) == 1.0


def test_the_farther_half_is_kept_from_what_is_fitted() -> None:
    """Each composition has its own halves, and no label has a say in them."""
    frames = crystals(40)
    data = Dataset(
        frames,
        elements=SPEC.elements,
        cutoff=SPEC.cutoff,
        references=dict.fromkeys(SPEC.elements, 0.0),
    )
    model = SPEC.build()
    params = model.init(0)
    far = distances(model, params, data)
    assert np.corrcoef(far, np.arange(40))[0, 1] > 0.5  # they are rattled more and more
    seen: list[Frame] = []

    class _HalvesError(Exception):
        """Ends the work where the structures are known."""

    def fitted(known: Sequence[Frame]) -> Potential:
        seen.extend(known)
        raise _HalvesError

    with pytest.raises(_HalvesError):
        error_growth(model, params, data, fitted, seed=0)
    chosen = [frames.index(frame) for frame in seen]
    assert len(chosen) == 14  # 70 % of the nearer half
    for kind in range(2):
        own = [k for k in chosen if k % 2 == kind]
        median = np.median(far[kind::2])
        assert own
        assert all(far[k] <= median for k in own)
    few = Dataset(
        frames[: ENOUGH - 1], elements=SPEC.elements, cutoff=SPEC.cutoff, references=data.references
    )
    assert error_growth(model, params, few, fitted, seed=0) == Powers(1.0, 1.0)
