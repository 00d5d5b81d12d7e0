"""What every posterior must satisfy: its draws, its file, and variances in closed form."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.core.protocols import ClosedForm, Model, Posterior
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.potential import artifact
from bayrace.testing.structures import graph_of, random_frame


def check_posterior(
    posterior: Posterior, model: Model, *, frame: Frame | None = None, draws: int = 1000
) -> None:
    """Check a posterior over the float64 weights of a model against its protocol.

    Draws have the shapes of the weights, depend on nothing but the seed and change nothing; the
    posterior survives its file bit for bit, and a change of precision up to rounding. One in
    closed form must agree, on `frame`, with the scatter of `draws` of its weights; a random small
    crystal if None. With `draws` 0 that is left out: for force covariances from random directions,
    which are estimates, and for error estimates that are not the scatter of any weights.
    """
    _check_draws(posterior, model)
    _check_file(posterior)
    _check_precision(posterior)
    if isinstance(posterior, ClosedForm):
        crystal = random_frame(model.elements, 4, seed=0, cell=4.2 * np.eye(3))
        _check_mean(posterior)
        if draws:
            _check_spread(posterior, posterior, model, frame or crystal, draws)


def _check_draws(posterior: Posterior, model: Model) -> None:
    count = posterior.samples
    assert count >= 1, f"samples={count}: predictions need at least 1"
    shapes = {name: tuple(value.shape) for name, value in model.init(0).items()}
    state, stored = torch.get_rng_state(), _copied(posterior.tensors())
    first = posterior.draw(count, seed=3)
    found = {name: tuple(value.shape) for name, value in first.items()}
    expected = {name: (count, *shape) for name, shape in shapes.items()}
    assert found == expected, f"draw({count}) has shapes {found}, not {expected}"
    for name, value in first.items():
        assert value.isfinite().all(), f"draw({count}): {name} is not finite"
    kept = _copied(first)
    posterior.draw(count, seed=4)
    posterior.draw(1, seed=3)
    _same(posterior.draw(count, seed=3), kept, "a draw with the same seed, after others")
    _same(posterior.tensors(), stored, "tensors after draws")
    assert torch.equal(torch.get_rng_state(), state), "a draw moved torch's global generator"
    try:
        posterior.draw(0, seed=0)
    except ValueError:
        return
    raise AssertionError("draw(0) is not refused; raise ValueError")


def _check_file(posterior: Posterior) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.bayrace"
        path.write_bytes(artifact.encode(posterior.options(), posterior.tensors()))
        contents = artifact.read(path)
    again = type(posterior).restore(contents.tensors, contents.document)
    assert again.name == posterior.name, f"{posterior.name} is {again.name} after its file"
    assert again.samples == posterior.samples, f"samples are {again.samples} after the file"
    assert again.options() == posterior.options(), f"options are {again.options()} after the file"
    _same(again.tensors(), posterior.tensors(), "tensors after the file")
    drawn = posterior.draw(posterior.samples, seed=5)
    _same(again.draw(posterior.samples, seed=5), drawn, "a draw after the file")


def _check_precision(posterior: Posterior) -> None:
    """float32 draws are those in float64, rounded: a seed means the same in every precision."""
    count = posterior.samples
    exact = posterior.to(dtype=torch.float64).draw(count, seed=6)
    rough = posterior.to(dtype=torch.float32).draw(count, seed=6)
    for name, value in rough.items():
        assert value.dtype == torch.float32, f"{name} is {value.dtype} after to(float32)"
        error = float((value.double() - exact[name]).abs().max())
        size = float(exact[name].abs().max().clamp(min=1e-12))
        assert error < 1e-5 * size, f"{name} in float32 is off by {error} of {size}"


def _check_mean(posterior: Posterior) -> None:
    """In closed form the only sample is the mean."""
    assert posterior.samples == 1, f"samples={posterior.samples}; a closed form predicts with 1"
    _same(posterior.draw(1, seed=0), posterior.draw(1, seed=1), "draw(1) of another seed, the mean")


def _check_spread(
    closed: ClosedForm, posterior: Posterior, model: Model, frame: Frame, draws: int
) -> None:
    """Against draws, shrunk towards the mean until the model is linear in them."""
    batch = graph_of(model, frame)
    stress = bool(frame.pbc.all())
    mean = {name: value[0] for name, value in posterior.draw(1, seed=0).items()}
    outputs = evaluate(model, mean, batch, stress=stress)
    spread = closed.spread(model, mean, batch, outputs, forces=True, stress=stress)
    alone = closed.spread(model, mean, batch, outputs, forces=False, stress=False)
    assert alone.forces is None, "forces were not asked for"
    assert alone.stress is None, "stress was not asked for"
    error = float((alone.energy / spread.energy - 1).abs().max())
    assert error < 1e-9, f"energy variance alone differs by {error} from that beside forces"
    found = {"energy": spread.energy, "forces": spread.forces, "stress": spread.stress}
    seen = _scatter(model, mean, posterior.draw(draws, seed=7), batch, stress=stress)
    bound = 5 * (2 / draws) ** 0.5  # five standard errors of a Gaussian's variance
    for name, expected in seen.items():
        value = found[name]
        assert value is not None, f"the spread of {name} is missing"
        shape = tuple(value.shape)
        assert value.shape == expected.shape, f"{name}: {shape}, not {tuple(expected.shape)}"
        total = value if name == "energy" else value.diagonal(dim1=-2, dim2=-1).sum(-1)
        drawn = expected if name == "energy" else expected.diagonal(dim1=-2, dim2=-1).sum(-1)
        off = float((drawn / total - 1).abs().max())
        assert off < bound, f"variance of {name}: draws differ from the closed form by {off:.1%}"
        largest = float(value.abs().max())
        gap = float((expected - value).abs().max()) / largest
        assert gap < bound, f"covariance of {name}: draws differ by {gap:.1%} of the largest"


_SHRUNK = 1e-5  # of the way from the mean to a draw


def _scatter(
    model: Model, mean: Params, drawn: Params, batch: GraphBatch, *, stress: bool
) -> dict[str, Tensor]:
    """Second moments of the outputs about those of the mean."""
    near = {name: mean[name] + _SHRUNK * (drawn[name] - mean[name]) for name in mean}

    def values(params: Params) -> dict[str, Tensor]:
        outputs = evaluate(model, params, batch, stress=stress)
        known = {"energy": outputs.energy.unsqueeze(-1), "forces": outputs.forces}
        return known | ({} if outputs.stress is None else {"stress": outputs.stress})

    centre = values(mean)
    moved: dict[str, Tensor] = torch.func.vmap(values, chunk_size=100)(near)
    moments = {}
    for name, value in moved.items():
        step = (value - centre[name]).detach() / _SHRUNK
        moments[name] = torch.einsum("mni,mnj->nij", step, step) / len(step)
    return moments | {"energy": moments["energy"][:, 0, 0]}


def _copied(params: Params) -> Params:
    return {name: value.clone() for name, value in params.items()}


def _same(actual: Params, expected: Params, what: str) -> None:
    assert actual.keys() == expected.keys(), f"{what}: {sorted(actual)}, not {sorted(expected)}"
    for name, value in expected.items():
        assert torch.equal(actual[name], value), f"{what}: {name} differs"
