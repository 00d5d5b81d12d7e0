"""Predictive moments of every posterior on a network with stress noise: known answers, symmetries.

Members of an ensemble by hand, streaming and file order are in test_predict.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bayrace.core.outputs import Params
from bayrace.core.prediction import Prediction
from bayrace.core.protocols import ClosedForm
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NO_NOISE, NoiseSpec, noise
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.testing import EXAMPLES, check_predictions, graph_of, random_frame

Make = Callable[..., Potential]
Moments = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]

ELEMENTS = (1, 8)
MEMBERS = 8
CRYSTAL = random_frame(ELEMENTS, 6, seed=1, cell=np.diag([4.4, 4.7, 5.1]) + 0.4)
MOLECULE = random_frame(ELEMENTS, 5, seed=2)
JOINT = NoiseSpec("joint", "extensive", "equivariant", stress=True)
SHALLOW = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=MEMBERS)
SAMPLED = ("point", "ensemble", "swag", "ivon", "laplace, diagonal, sampled",
           "laplace, last layer, sampled")  # fmt: skip
LAST_LAYER = ("laplace, last layer, glm", "llpr", "shallow")


def potential_of(make: Make, label: str, *, knots: int = 16) -> Potential:
    """A tiny potential with the posterior of a label; splines let members go side by side."""
    bare = make(noise=SHALLOW if label == "shallow" else JOINT, elements=ELEMENTS)
    spec = replace(bare.spec, radial_knots=knots)
    model = Race(spec)
    posterior = EXAMPLES[label](model, model.init(3, dtype=torch.float64))
    return replace(bare, spec=spec, posterior=posterior)


def one_member(potential: Potential, params: Params, frame: Frame) -> dict[str, Any]:
    """Means and noise of one set of weights, in file order."""
    batch = graph_of(potential.model, frame)
    outputs = evaluate(potential.model, params, batch, stress=True)
    spread = noise(outputs, batch, potential.model.noise_spec, potential.lambdas)
    zero = sum(potential.references[int(z)] for z in frame.numbers)
    assert outputs.stress is not None
    means = {
        "energy": outputs.energy.numpy()[:, None] + zero,
        "forces": outputs.forces.numpy()[batch.file_order],
        "stress": outputs.stress.numpy(),
    }
    quiet = {name: np.zeros((*value.shape, value.shape[1])) for name, value in means.items()}
    if spread.energy is not None:
        quiet["energy"] = spread.energy.numpy()[:, None, None]
    if spread.forces is not None:
        quiet["forces"] = spread.forces.numpy()[batch.file_order]
    if spread.stress is not None:
        quiet["stress"] = spread.stress.numpy()
    return {"mean": means, "noise": quiet}


def looped(potential: Potential, frame: Frame) -> Moments:
    """Mean, aleatoric and epistemic (co)variances by a loop over members and components."""
    members = potential.posterior.draw(potential.posterior.samples, seed=0)
    count = potential.posterior.samples
    each = [
        one_member(potential, {name: value[m] for name, value in members.items()}, frame)
        for m in range(count)
    ]
    moments: Moments = {}
    for name, first in each[0]["mean"].items():
        mean = sum(member["mean"][name] for member in each) / count
        aleatoric = sum(member["noise"][name] for member in each) / count
        epistemic = np.zeros_like(aleatoric)
        for member in each:
            for entry in range(len(first)):
                for i in range(first.shape[1]):
                    for j in range(first.shape[1]):
                        deviation = member["mean"][name][entry] - mean[entry]
                        epistemic[entry, i, j] += deviation[i] * deviation[j] / count
        moments[name] = (mean, aleatoric, epistemic)
    return moments


def by_columns(potential: Potential, frame: Frame) -> Moments:
    """Of a Gaussian over the last layer: one finite difference for each column of its factor.

    Energies, forces and stress are linear in those weights, so the differences are exact.
    """
    posterior: Any = potential.posterior
    last = posterior.last if hasattr(posterior, "last") else posterior.gaussian
    centre = one_member(potential, last.params, frame)
    covariance = {name: np.zeros_like(value) for name, value in centre["noise"].items()}
    for column in last.factor.T:
        moved = last.shifted(column.unsqueeze(0))
        there = one_member(potential, {name: value[0] for name, value in moved.items()}, frame)
        for name, value in centre["mean"].items():
            step = there["mean"][name] - value
            covariance[name] += step[:, :, None] * step[:, None, :]
    return {name: (centre["mean"][name], centre["noise"][name], covariance[name])
            for name in covariance}  # fmt: skip


def assert_moments(found: Prediction, expected: Moments) -> None:
    for name, (mean, aleatoric, epistemic) in expected.items():
        value = getattr(found, name)
        shape = value.aleatoric.shape
        pairs = {
            "mean": (value.mean.numpy(), mean.reshape(value.mean.shape)),
            "aleatoric": (value.aleatoric.numpy(), aleatoric.reshape(shape)),
            "epistemic": (value.epistemic.numpy(), epistemic.reshape(shape)),
            "total": (value.total.numpy(), (aleatoric + epistemic).reshape(shape)),
        }
        for part, (ours, theirs) in pairs.items():
            scale = max(np.abs(theirs).max(), 1e-12)
            np.testing.assert_allclose(
                ours / scale, theirs / scale, rtol=0, atol=1e-6, err_msg=f"{part} {name}"
            )


@pytest.mark.parametrize("knots", [0, 16])
@pytest.mark.parametrize("label", SAMPLED)
def test_mixture_moments_are_those_of_a_loop(make_potential: Make, label: str, knots: int) -> None:
    potential = potential_of(make_potential, label, knots=knots)
    assert not isinstance(potential.posterior, ClosedForm)
    found = potential.predict(CRYSTAL, stress=True)
    assert_moments(found, looped(potential, CRYSTAL))
    assert (float(found.energy.epistemic) > 0) == (label != "point")


@pytest.mark.parametrize("label", LAST_LAYER)
def test_closed_forms_are_those_of_a_loop_over_weights(make_potential: Make, label: str) -> None:
    potential = potential_of(make_potential, label)
    found = potential.predict(CRYSTAL, stress=True)
    assert float(found.energy.epistemic) > 0
    assert_moments(found, by_columns(potential, CRYSTAL))


def test_no_posterior_is_left_out() -> None:
    apart = {"laplace, diagonal, glm", "distance"}  # tested in files of their own
    assert {*SAMPLED, *LAST_LAYER} | apart == set(EXAMPLES)


@pytest.mark.parametrize("label", EXAMPLES)
def test_predictions_turn_permute_and_ignore_their_batch(make_potential: Make, label: str) -> None:
    potential = potential_of(make_potential, label)
    check_predictions(potential, CRYSTAL)
    check_predictions(potential, MOLECULE)


def test_noise_that_a_posterior_found_turns(make_potential: Make) -> None:
    bare = make_potential(noise=NO_NOISE, elements=ELEMENTS)
    example = EXAMPLES["laplace, last layer, glm"]
    posterior: Any = example(bare.model, bare.posterior.tensors())
    found = {"energy_noise": 0.1, "forces_noise": 0.2, "stress_noise": 0.3}
    loud = replace(bare, posterior=replace(posterior, found=found))
    check_predictions(loud, CRYSTAL)
    stress = loud.predict(CRYSTAL, stress=True).stress
    assert stress is not None
    assert float(stress.aleatoric[0, 0, 0]) == pytest.approx(0.09)


@pytest.mark.parametrize("label", EXAMPLES)
def test_a_molecule_in_the_batch_has_no_stress(make_potential: Make, label: str) -> None:
    """Its stress is nan, in every part, and spoils nothing else."""
    potential = potential_of(make_potential, label)
    found = potential.predict([MOLECULE, CRYSTAL], stress=True).stress
    alone = potential.predict(CRYSTAL, stress=True).stress
    assert found is not None
    assert alone is not None
    assert found.mean[0].isnan().all()
    assert found.epistemic[0].isnan().all()
    for part in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(found, part)[1], getattr(alone, part)[0])
