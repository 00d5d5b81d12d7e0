"""What every model must satisfy: symmetries, exact derivatives, continuity at the cutoff."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayrace.core.outputs import Outputs, Params
from bayrace.core.protocols import Model
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, Noise, noise
from bayrace.testing.rotations import random_turns, stress_tensor, voigt_rotation
from bayrace.testing.structures import graph_of, random_frame

Floats = npt.NDArray[np.float64]


def check_symmetries(
    model: Model, params: Params, frame: Frame, *, tolerance: float = 1e-9, seed: int = 0
) -> None:
    """Rotations, reflections, translations and permutations, relative to the largest value.

    Energy is invariant; forces, stress and covariances turn with the structure. Covariances are
    checked where the model's noise is equivariant.
    """
    random = np.random.default_rng(seed)
    turns = list(random_turns(random))
    order = random.permutation(len(frame.numbers))
    moves: dict[str, tuple[Floats, Frame]] = {}
    for name, matrix in turns:
        moved = replace(frame, positions=frame.positions @ matrix.T, cell=frame.cell @ matrix.T)
        moves[name] = (matrix, moved)
    away = replace(frame, positions=frame.positions + random.normal(size=3) * 10)
    moves["translation"] = (np.eye(3), away)
    shuffled = replace(frame, positions=frame.positions[order], numbers=frame.numbers[order])
    before = _observe(model, params, frame)
    for name, (matrix, moved) in moves.items():
        _compare(_turned(before, matrix), _observe(model, params, moved), name, tolerance)
    _compare(_permuted(before, order), _observe(model, params, shuffled), "permutation", tolerance)


def check_derivatives(
    model: Model, params: Params, frame: Frame, *, tolerance: float = 1e-6, seed: int = 0
) -> None:
    """Forces and, where fully periodic, stress against finite differences in random directions."""
    periodic = bool(frame.pbc.all())
    before = _observe(model, params, frame)
    random = np.random.default_rng(seed)
    direction = random.normal(size=frame.positions.shape)
    direction /= np.linalg.norm(direction)

    def moved(step: float) -> Frame:
        return replace(frame, positions=frame.positions + step * direction)

    slope = _slope(lambda step: _energy(model, params, moved(step)))
    exact = -float((before.forces.numpy() * direction).sum())
    _close(exact, slope, float(before.forces.norm()), "force", tolerance)
    if not periodic or before.stress is None:
        return
    strain = random.normal(size=(3, 3))
    strain = (strain + strain.T) / np.linalg.norm(strain + strain.T)

    def strained(step: float) -> Frame:
        map_ = np.eye(3) + step * strain
        return replace(frame, positions=frame.positions @ map_, cell=frame.cell @ map_)

    volume = abs(float(np.linalg.det(frame.cell)))
    slope = _slope(lambda step: _energy(model, params, strained(step))) / volume
    tensor = stress_tensor(before.stress.numpy())
    _close(
        float((tensor * strain).sum()), slope, float(np.linalg.norm(tensor)), "stress", tolerance
    )


def check_cutoff(model: Model, params: Params, *, tolerance: float = 1e-7) -> None:
    """Energy and forces are continuous as a third atom crosses the cutoff of a dimer."""
    first, last = model.elements[0], model.elements[-1]
    for step in (1e-4, 1e-6):
        sides = []
        for sign in (-1, 1):
            far = model.cutoff + sign * step
            positions = np.array([[0.0, 0, 0], [1.1, 0.3, 0], [0, 0, far]])
            frame = replace(
                random_frame(model.elements, 3, seed=0),
                numbers=np.array([first, last, last]),
                positions=positions,
            )
            sides.append(_observe(model, params, frame))
        jump = float((sides[0].energy - sides[1].energy).abs().max())
        kick = float((sides[0].forces - sides[1].forces).abs().max())
        bound = tolerance + step  # the derivative is bounded: the jump shrinks with the step
        assert jump < bound, f"energy jumps by {jump} eV at the cutoff (step {step} Å)"
        assert kick < bound, f"forces jump by {kick} eV/Å at the cutoff (step {step} Å)"


class _Seen(NamedTuple):
    energy: Tensor
    forces: Tensor
    stress: Tensor | None
    noise: Noise


def _observe(model: Model, params: Params, frame: Frame) -> _Seen:
    batch = graph_of(model, frame)
    outputs: Outputs = evaluate(model, params, batch, stress=bool(frame.pbc.all()))
    spec = getattr(model, "noise_spec", None)
    seen = Noise(None, None, None)
    if spec is not None and spec.covariance == "equivariant":
        seen = noise(outputs, batch, spec, Lambdas(1.0, 1.0, 1.0))
    forces_noise = None if seen.forces is None else seen.forces[batch.file_order]
    return _Seen(
        outputs.energy.detach(),
        outputs.forces.detach()[batch.file_order],
        None if outputs.stress is None else outputs.stress.detach()[0],
        seen._replace(forces=forces_noise),
    )


def _energy(model: Model, params: Params, frame: Frame) -> float:
    return float(model.energy(params, graph_of(model, frame)).energy[0])


def _slope(function: Callable[[float], float], *, step: float = 1e-3) -> float:
    """Central difference of sixth order."""
    weights = ((1, 45.0), (2, -9.0), (3, 1.0))
    total = sum(w * (function(k * step) - function(-k * step)) for k, w in weights)
    return total / (60 * step)


def _turned(seen: _Seen, matrix: Floats) -> _Seen:
    turn = torch.from_numpy(np.ascontiguousarray(matrix))
    voigt = voigt_rotation(matrix)
    forces, stress = seen.noise.forces, seen.noise.stress
    return _Seen(
        seen.energy,
        seen.forces @ turn.T,
        None if seen.stress is None else voigt @ seen.stress,
        seen.noise._replace(
            forces=None if forces is None else turn @ forces @ turn.T,
            stress=None if stress is None else voigt @ stress @ voigt.T,
        ),
    )


def _permuted(seen: _Seen, order: npt.NDArray[np.int64]) -> _Seen:
    forces = seen.noise.forces
    return seen._replace(
        forces=seen.forces[order],
        noise=seen.noise._replace(forces=None if forces is None else forces[order]),
    )


def _compare(expected: _Seen, actual: _Seen, name: str, tolerance: float) -> None:
    found = _named(actual)
    for key, value in _named(expected).items():
        if isinstance(value, Tensor):
            actual_value = found[key]
            assert isinstance(actual_value, Tensor), f"{key} is missing after {name}"
            error = float((actual_value - value).abs().max() / value.abs().max().clamp(min=1e-12))
            assert error < tolerance, f"{key} after {name}: relative error {error}"


def _named(seen: _Seen) -> dict[str, object]:
    noises = {f"{key} noise": value for key, value in seen.noise._asdict().items()}
    return seen._asdict() | noises


def _close(exact: float, slope: float, size: float, name: str, tolerance: float) -> None:
    error = abs(exact - slope) / max(size, 1e-12)
    assert error < tolerance, f"{name}: derivative {exact}, finite difference {slope}"
