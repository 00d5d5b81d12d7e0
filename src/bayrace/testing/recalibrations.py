"""What every recalibration must satisfy: it repairs wrong σ, moves no mean, and can be stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from bayrace.calibrate.calibration import Calibration
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame, bare_frame
from bayrace.evaluate.metrics.calibration import calibration_error, central_mass

Batches = Iterable[tuple[Sequence[Frame], Prediction]]
Fit = Callable[[Batches], Calibration]

_FRAMES, _NUMBERS = 1500, np.array([1, 8])
_QUANTITIES = ("energy", "forces")


def check_recalibration(fit: Fit, *, seed: int = 0) -> None:
    """Check a way to fit a `Calibration` to predictions and the labels of their frames.

    Judged on frames it was not fitted to: σ that are three times too large or too small are
    repaired, the calibration error falling at least twentyfold; right ones are left alone; errors
    that are no Gaussians are repaired as well where the calibration brings a shape. Means stay,
    both parts of a variance grow alike, and the JSON text holds all of it.
    """
    for wrong in (3.0, 1 / 3):
        known, fresh = (_synthetic(seed + k, wrong=wrong, tails=False) for k in (0, 1))
        fitted = fit([(known.frames, known.prediction)])
        _check_applied(fitted, fresh)
        _check_repair(fitted, fresh, f"σ wrong by {wrong:.2g}")
        for name in _QUANTITIES:
            factor = getattr(fitted, name).factor * wrong
            assert abs(factor - 1) < 0.1, f"{name}: σ is wrong by {factor} after the repair"
    right, fresh = (_synthetic(seed + k, wrong=1.0, tails=False) for k in (2, 3))
    fitted = fit([(right.frames, right.prediction)])
    for name, error in _errors(fitted.apply(fresh.prediction, fresh.numbers), fresh).items():
        assert error < 20 / (6 * _FRAMES), f"{name}: calibrated σ was spoilt, CE {error}"
    known, fresh = (_synthetic(seed + k, wrong=3.0, tails=True) for k in (4, 5))
    fitted = fit([(known.frames, known.prediction)])
    if fitted.energy is not None and fitted.energy.shape is not None:
        _check_repair(fitted, fresh, "heavy tails")


class _Set(NamedTuple):
    frames: list[Frame]
    prediction: Prediction

    @property
    def numbers(self) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([frame.numbers for frame in self.frames]))


def _synthetic(seed: int, *, wrong: float, tails: bool) -> _Set:
    """Labels around zero whose predicted σ is `wrong` times that of the errors."""
    random = np.random.default_rng(seed)
    atoms = len(_NUMBERS)
    size = (_FRAMES, 1 + 3 * atoms)
    errors = random.standard_t(3, size) if tails else random.normal(size=size)
    level = np.exp(random.normal(size=_FRAMES))  # σ of each structure
    frames = [
        replace(
            bare_frame(
                _NUMBERS,
                random.normal(size=(atoms, 3)),
                np.zeros((3, 3)),
                np.zeros(3, dtype=bool),
                source="synthetic",
                index=index,
            ),
            energy=float(row[0]) * float(scale),
            forces=row[1:].reshape(atoms, 3) * scale,
        )
        for index, (row, scale) in enumerate(zip(errors, level, strict=True))
    ]
    variance = torch.from_numpy((wrong * level) ** 2)
    matrices = variance.repeat_interleave(atoms)[:, None, None] * torch.eye(3).double()
    prediction = Prediction(
        energy=Uncertain(torch.zeros_like(variance), 0.3 * variance, 0.7 * variance),
        forces=Uncertain(matrices.new_zeros(len(matrices), 3), 0.3 * matrices, 0.7 * matrices),
        stress=None,
        atomic_energy=matrices.new_zeros(len(matrices)),
        structure_index=torch.arange(_FRAMES).repeat_interleave(atoms),
    )
    return _Set(frames, prediction)


def _errors(prediction: Prediction, made: _Set) -> dict[str, float]:
    """Calibration error of each quantity."""
    energy = torch.tensor([frame.energy for frame in made.frames], dtype=torch.float64)
    forces = [frame.forces for frame in made.frames if frame.forces is not None]
    labels = {"energy": energy, "forces": torch.from_numpy(np.concatenate(forces))}
    pits = {name: getattr(prediction, name).pit(label) for name, label in labels.items()}
    return {name: calibration_error(central_mass(pit.numpy())) for name, pit in pits.items()}


def _check_repair(fitted: Calibration, fresh: _Set, case: str) -> None:
    before = _errors(fresh.prediction, fresh)
    for name, after in _errors(fitted.apply(fresh.prediction, fresh.numbers), fresh).items():
        message = f"{name}, {case}: CE {before[name]:.2g} before, {after:.2g} after"
        assert after < before[name] / 20, message


def _check_applied(fitted: Calibration, fresh: _Set) -> None:
    """What it does to a prediction, and that its text does the same."""
    again = Calibration.from_json(json.loads(json.dumps(fitted.to_json())))
    assert again.to_json() == fitted.to_json(), "the calibration changes in its file"
    raw, applied = fresh.prediction, fitted.apply(fresh.prediction, fresh.numbers)
    for name in _QUANTITIES:
        before, after = getattr(raw, name), getattr(applied, name)
        assert torch.equal(after.mean, before.mean), f"the mean {name} moved"
        share = after.epistemic - 0.7 * after.total
        assert float(share.abs().max() / after.total.abs().max()) < 1e-12, (
            f"{name}: aleatoric and epistemic parts grew differently"
        )
    forces = applied.forces.shape
    assert forces is None or forces.symmetric, "force errors must be symmetric to be equivariant"
