"""Every posterior and recalibration passes its suite, and the suites find what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from bayrace.calibrate import RECALIBRATIONS
from bayrace.calibrate.calibration import Calibration
from bayrace.calibrate.fit import fit_calibration
from bayrace.core.outputs import Params
from bayrace.core.prediction import Prediction
from bayrace.core.protocols import Posterior
from bayrace.models.noise import NO_NOISE, NoiseSpec
from bayrace.models.race.network import Race
from bayrace.posterior import POSTERIORS
from bayrace.posterior.gaussian.low_rank import Swag
from bayrace.posterior.llpr import Llpr
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential
from bayrace.testing import (
    EXAMPLES,
    check_posterior,
    check_predictions,
    check_recalibration,
    random_frame,
    small_spec,
)

ELEMENTS = (1, 8)
MEMBERS = 8


def example(label: str) -> tuple[Race, Any]:
    """A tiny network and a posterior of it."""
    shallow = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=MEMBERS)
    noise = shallow if label == "shallow" else NO_NOISE
    model = Race(small_spec(ELEMENTS, noise=noise))
    return model, EXAMPLES[label](model, model.init(0, dtype=torch.float64))


def test_there_is_an_example_of_every_posterior() -> None:
    """A new file in posterior/ must add one to bayrace.testing.examples, and so is checked."""
    assert {label.split(",")[0] for label in EXAMPLES} == set(POSTERIORS)
    for label in EXAMPLES:
        assert example(label)[1].name == label.split(",")[0]


@pytest.mark.parametrize("label", EXAMPLES)
def test_every_posterior_conforms(label: str) -> None:
    model, posterior = example(label)
    draws = {"shallow": MEMBERS, "distance": 0}.get(label, 1000)
    check_posterior(posterior, model, draws=draws)


@pytest.mark.parametrize("method", list(RECALIBRATIONS))
def test_every_recalibration_conforms(method: str) -> None:
    check_recalibration(partial(fit_calibration, method=method))


class Unseeded(Swag):
    """Draws from torch's global generator."""

    def draw(self, samples: int, *, seed: int) -> Params:
        drawn = super().draw(samples, seed=seed)
        return {name: value + torch.randn(()) for name, value in drawn.items()}


class Forgetful(Swag):
    """Its file loses the number of samples."""

    def options(self) -> dict[str, Any]:
        return {**super().options(), "samples": 3}


class Rigid(Swag):
    """Does not change its precision."""

    def to(self, **_: Any) -> Any:
        return self


@dataclass(frozen=True, eq=False)
class Doubled(Llpr):
    """Variances twice too large."""

    def spread(self, *arguments: Any, **keywords: Any) -> Any:
        spread = super().spread(*arguments, **keywords)
        return type(spread)(*(None if each is None else 2 * each for each in spread))


@dataclass(frozen=True, eq=False)
class Wandering(Llpr):
    """Its single sample is not the mean."""

    def draw(self, samples: int, *, seed: int) -> Params:
        if samples < 1:
            raise ValueError(f"samples={samples}")
        return self.last.sample(samples, seed=seed)


class Flat(Point):
    """Without the dimension of samples."""

    def draw(self, samples: int, *, seed: int) -> Params:
        return dict(self.params)


def remade(kind: type[Any], label: str) -> tuple[Race, Posterior]:
    model, posterior = example(label)
    return model, kind(**vars(posterior))


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        (Flat, "point", "has shapes"),
        (Unseeded, "swag", "a draw with the same seed, after others"),
        (Forgetful, "swag", "samples are 3 after the file"),
        (Rigid, "swag", r"is torch\.float64 after to\(float32\)"),
        (Doubled, "llpr", "variance of energy: draws differ from the closed form by"),
        (Wandering, "llpr", r"draw\(1\) of another seed, the mean"),
    ],
)
def test_faults_of_posteriors_are_found(kind: type[Any], label: str, message: str) -> None:
    model, posterior = remade(kind, label)
    with pytest.raises(AssertionError, match=message):
        check_posterior(posterior, model)


def fitted_with(change: Callable[[Calibration], Calibration]) -> Callable[[Any], Calibration]:
    return lambda batches: change(fit_calibration(batches, method="scale"))


def with_factor(fitted: Calibration, power: float) -> Calibration:
    assert fitted.forces is not None
    return replace(fitted, forces=replace(fitted.forces, factor=fitted.forces.factor**power))


@dataclass(frozen=True)
class Shifting(Calibration):
    """Moves the energies."""

    def apply(self, prediction: Prediction, numbers: Any = None) -> Prediction:
        moved = replace(prediction.energy, mean=prediction.energy.mean + 1e-9)
        return super().apply(replace(prediction, energy=moved), numbers)


def test_faults_of_recalibrations_are_found() -> None:
    with pytest.raises(AssertionError, match="forces, σ wrong by 3: CE"):
        check_recalibration(fitted_with(lambda fitted: with_factor(fitted, 0.5)))
    with pytest.raises(AssertionError, match="the mean energy moved"):
        check_recalibration(fitted_with(lambda fitted: Shifting(**vars(fitted))))


class Bent:
    """Predicts as a potential does, but in a frame of its own."""

    def __init__(self, potential: Potential, part: str) -> None:
        self.potential, self.part = potential, part

    def predict(self, structures: Any, *, stress: bool) -> Prediction:
        found = self.potential.predict(structures, stress=stress)
        matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        forces = {self.part: getattr(found.forces, self.part) @ matrix}
        if self.part != "mean":
            forces = {self.part: matrix @ getattr(found.forces, self.part) @ matrix}
        return replace(found, forces=replace(found.forces, **forces))


@pytest.mark.parametrize("part", ["mean", "aleatoric", "epistemic"])
def test_predictions_that_do_not_turn_are_found(
    make_potential: Callable[..., Potential], part: str
) -> None:
    potential = make_potential(seeds=(0, 1))
    frame = random_frame((1, 6, 8), 5, seed=0, cell=4.5 * np.eye(3))
    check_predictions(potential, frame)
    with pytest.raises(AssertionError, match=f"{part} forces after rotation"):
        check_predictions(Bent(potential, part), frame)
