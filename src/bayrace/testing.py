"""Conformance suites: what every model must satisfy, for our tests and for models of your own.

    from bayrace.testing import check_cutoff, check_derivatives, check_symmetries, random_frame
    frame = random_frame((1, 6, 8), 9, seed=0)
    check_symmetries(model, model.init(0, dtype=torch.float64), frame)

Every check raises AssertionError with the number that failed. Use float64 parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import Frame, bare_frame
from bayrace.model.derivatives import evaluate
from bayrace.model.noise import Lambdas, Noise, NoiseSpec, noise
from bayrace.model.spec import RaceSpec
from bayrace.types import GraphBatch, Model, Outputs, Params

Floats = npt.NDArray[np.float64]


def random_frame(
    elements: tuple[int, ...],
    atoms: int,
    *,
    seed: int,
    cell: Floats | None = None,
    pbc: tuple[bool, bool, bool] = (True, True, True),
    apart: float = 0.9,
) -> Frame:
    """A structure without labels whose atoms are at least `apart` Å from each other.

    Without a cell it is a molecule of liquid-like density.
    """
    random = np.random.default_rng(seed)
    periodic = cell is not None
    box = cell if cell is not None else np.eye(3) * (8.0 * atoms) ** (1 / 3)
    placed = np.empty((0, 3))
    shifts = np.stack(np.meshgrid(*[(-1, 0, 1)] * 3, indexing="ij"), -1).reshape(-1, 3) @ box
    while len(placed) < atoms:
        candidate = random.random(3) @ box
        images = shifts if periodic else np.zeros((1, 3))
        gaps = np.linalg.norm(placed[:, None] + images - candidate, axis=-1)
        if gaps.min(initial=np.inf) > apart:
            placed = np.vstack([placed, candidate])
    return bare_frame(
        random.choice(np.asarray(elements), atoms).astype(np.int64),
        placed,
        box if periodic else np.zeros((3, 3)),
        np.asarray(pbc if periodic else (False, False, False)),
        source="random",
        index=seed,
    )


def small_spec(elements: tuple[int, ...], **changes: Any) -> RaceSpec:
    """A network that is as small as it can be and still has every part; `changes` go on top."""
    values: dict[str, Any] = {
        "elements": elements,
        "cutoff": 4.0,
        "mean_neighbours": 6.0,
        "layers": 2,
        "hidden": "4x0e+4x1o+4x2e",
        "features": 4,
        "l_max": 2,
        "radial_basis": 4,
        "envelope_power": 2,
        "radial_hidden": (8,),
        "radial_knots": 0,
        "readout_hidden": 8,
        "neighbour_norm": "sqrt",
        "activation": "identity",
        "gate": False,
        "self_contraction": False,
        "pair_radial": False,
        "noise": NoiseSpec("joint", "extensive", "equivariant", stress=False),
        "scale": 0.5,
        "shift": (0.0,) * len(elements),
    }
    return RaceSpec(**(values | changes))


def check_symmetries(
    model: Model, params: Params, frame: Frame, *, tolerance: float = 1e-9, seed: int = 0
) -> None:
    """Rotations, reflections, translations and permutations, relative to the largest value.

    Energy is invariant; forces, stress and covariances turn with the structure. Covariances are
    checked where the model's noise is equivariant.
    """
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    order = random.permutation(len(frame.numbers))
    moves: dict[str, tuple[Floats, Frame]] = {}
    proper = turn * np.linalg.det(turn)
    for name, matrix in {"rotation": proper, "reflection": -proper}.items():
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
    tensor = _tensor(before.stress.numpy())
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


def graph_of(model: Model, *frames: Frame) -> GraphBatch:
    """A float64 batch of frames for a model."""
    graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in frames]
    return collate(graphs, elements_count=len(model.elements), dtype=torch.float64, device="cpu")


def _observe(model: Model, params: Params, frame: Frame) -> _Seen:
    batch = graph_of(model, frame)
    outputs: Outputs = evaluate(model, params, batch, stress=bool(frame.pbc.all()))
    spec = getattr(model, "noise_spec", None)
    seen = Noise(None, None, None)
    if spec is not None and spec.covariance == "equivariant":
        seen = noise(outputs, batch, spec, Lambdas(1.0, 1.0, 1.0))
    forces_noise = None if seen.forces is None else seen.forces[batch.restore]
    return _Seen(
        outputs.energy.detach(),
        outputs.forces.detach()[batch.restore],
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
    voigt = _voigt_rotation(matrix)
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


def _tensor(voigt: Floats) -> Floats:
    xx, yy, zz, yz, xz, xy = voigt
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def _voigt_rotation(matrix: Floats) -> Tensor:
    """The 6×6 matrix that turns Voigt components."""
    columns = []
    for unit in np.eye(6):
        turned = matrix @ _tensor(unit) @ matrix.T
        columns.append([turned[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))])
    return torch.tensor(np.array(columns).T)
