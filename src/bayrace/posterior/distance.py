"""Distance to the training data: an error estimate for the price of a prediction, forces included.

φ are the last hidden activations of an atom, μ and Σ their mean and covariance over the atoms of
its element in the training set. The latent distance (Janet 2019)

    m = (φ - μ)ᵀ Σ⁻¹ (φ - μ) / ⟨the same over the training atoms⟩

is about 1 where training has been and 10² to 10⁵ where it has not. The error of a force follows it
at home and abroad alike, and that of an energy follows the rigidity of the structure (LLPR, Bigi
2024), φ summed over its atoms and C = Σ φφᵀ + ςI over the training structures:

    cov F = c g(m)^p,    var E = α² φᵀC⁻¹φ ⟨g(m)^(q-1)⟩ over atoms,    var σ_ij = b Σ g(m)^p / V²,

where g(m) = m / (1 + m/K) levels off at K, 30 000 for forces and 300 for energies. Rigidity takes
the features for given. Far from the data they are wrong too, and errors grow faster than m, but not
for ever: atoms of a crystal hardly differ at home, and m of a melt is 10⁵. ς, p, q and K were
chosen on metals, germanium, water and molecules together, from home to four times the temperature
and strains of 6 %. Directions in which training atoms hardly differ are those that new structures
leave first: Σ is regularised as little as validation errors allow. c of every element, α and b are
fitted to these, and so is how much of the network's own noise is left beside them
(`bayrace.likelihood.robust.shares`). Nothing is differentiated. The price: force covariances have
no direction of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs, Params
from bayrace.core.protocols import LinearModel, Model, Posterior
from bayrace.data.dataset import Dataset
from bayrace.likelihood.robust import least_within
from bayrace.models.noise import Lambdas
from bayrace.nn.covariance import isotropic_covariance
from bayrace.nn.lengths import Lengths
from bayrace.posterior.example import STEP, last_layer
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places
from bayrace.posterior.growth import Growth, Law
from bayrace.posterior.held_out import HeldOut, held_out
from bayrace.posterior.latent import (
    hidden_features,
    inverse_root,
    training_features,
    whitened,
)
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod
from bayrace.posterior.novelty import REGULARISATION, Novelty
from bayrace.posterior.scales import scaled, scaled_forces, unlikeliness
from bayrace.posterior.stored import Group, Layout, take_features


@dataclass(frozen=True)
class DistanceOptions(PosteriorMethod):
    """How far atoms are from the training data, by what the network has learnt."""

    name: ClassVar[str] = "distance"
    adopts: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True
    power: Annotated[float, Ge(1), Le(3)] = 1.4
    """Variances of forces and stress grow with this power of the squared distance from the data."""
    energy_power: Annotated[float, Ge(1), Le(3)] = 2.0
    """The same for the variance of the energy."""
    ceiling: Annotated[float, Gt(1), Le(1e12)] = 3e4
    """The squared distance m levels off there for forces and stress: it counts as
    m / (1 + m / ceiling)."""
    energy_ceiling: Annotated[float, Gt(1), Le(1e12)] = 300.0
    """The same for the energy."""
    rigidity: Annotated[float, Ge(1e-14), Le(1)] = 1e-6
    """How well training energies fix any direction of the last layer at least, in units of the
    mean over directions; the larger, the smaller σ of energies far from the data."""
    regularisation: Annotated[float, Gt(0)] | None = None
    """Least variance of a feature that counts, in units of the mean; null: as little as validation
    errors do not contradict."""

    def fit(self, task: FitTask) -> Fitted:
        """Attach it to trained weights."""
        made = fit(
            task.model,
            task.weights,
            task.train,
            task.valid,
            options=self,
            lambdas=task.lambdas,
            progress=task.callbacks.progress,
        )
        return Fitted(made)

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Distance:
        """The stored one."""
        return Distance.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:  # noqa: ARG003
        """Weights, a Gaussian over the last layer, and what is known of the training atoms."""
        return Layout((Group("params/"),), last_layer=True, rest=take_features)

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """With random features."""
        return {cls.name: _example}


@dataclass(frozen=True, eq=False)
class Distance:
    """Weights, and what is known of the features that they give; implements `ClosedForm`.

    Draws of more than one sample are those of the last layer by LLPR, whose energies scatter as C
    says, without the growth by g(m)^(q-1).
    """

    name: ClassVar[str] = "distance"
    last: LastLayer  # its factor is α C^-½; zeros where energies are not modelled
    centre: Tensor  # (Z, D) float64, μ of each element
    whitening: Tensor  # (Z, D, D) float64, m = |(φ - μ) @ whitening|²
    forces_scale: Tensor | None  # (Z,) float64 (eV/Å)², c; None: forces are not modelled
    stress_scale: float | None  # eV²; None: the stress is not modelled
    forces_law: Law  # p and K
    energy_law: Law  # q - 1 and its K
    energy_modelled: bool
    noise: Mapping[str, float]  # factors of the network's noise variances, by quantity
    unlike: Novelty | None  # of whole structures; None where the file does not tell

    @property
    def samples(self) -> int:
        """One: the mean, whose variances are known."""
        return 1

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else draws of the last layer."""
        return self.last.draw(samples, seed=seed)

    def noise_scale(self) -> Mapping[str, float]:
        """How much of the variances that the network predicts as noise is left, by quantity."""
        return self.noise

    def distances(self, batch: GraphBatch, outputs: Outputs) -> Tensor:
        """m of every atom, (N,) float64 in the batch's order; 1 is the mean of the training."""
        return self._growth.distance(hidden_features(outputs), batch.species_counts)

    def novelty(self, batch: GraphBatch, outputs: Outputs) -> Tensor | None:
        """How unlike the training structures each is as a whole, (S,) float64."""
        return None if self.unlike is None else self.unlike(batch, hidden_features(outputs))

    def spread(
        self,
        model: Model,  # noqa: ARG002 - nothing is evaluated again
        params: Params,  # noqa: ARG002
        batch: GraphBatch,
        outputs: Outputs,
        *,
        forces: bool,
        stress: bool,
    ) -> EpistemicVariances:
        """Variances of the predictions `outputs`; None for what is not modelled."""
        found = self._growth(batch, outputs, forces=forces)
        virial = None
        if stress and self.stress_scale is not None:
            level = self.stress_scale * batch.summed(found.grown) / batch.volume.double().square()
            virial = level[:, None, None] * isotropic_covariance(6, level)
        return EpistemicVariances(found.energy, found.forces, virial, found.atomic)

    @cached_property
    def _growth(self) -> Growth:
        """m of every element, and the variance α² φᵀC⁻¹φ, as functions of φ."""
        return Growth(
            Lengths(self.whitening, self.centre.contiguous()),
            Lengths(self.last.factor.unsqueeze(0)) if self.energy_modelled else None,
            self.forces_scale,
            self.forces_law,
            self.energy_law,
        )

    def tensors(self) -> Params:
        """Mean weights, the rigidity of energies, and the features of training atoms."""
        own = {"centre": self.centre, "whitening": self.whitening}
        if self.forces_scale is not None:
            own["forces_scale"] = self.forces_scale
        if self.unlike is not None:
            own["novelty_gains"] = self.unlike.gains
        return self.last.tensors() | own

    def options(self) -> dict[str, Any]:
        """The scales."""
        return {
            "power": self.forces_law.power,
            "ceiling": self.forces_law.ceiling,
            "energy_power": 1 + self.energy_law.power,
            "energy_ceiling": self.energy_law.ceiling,
            "stress_scale": self.stress_scale,
            "energy_modelled": self.energy_modelled,
            "noise": dict(self.noise),
            "usual_novelty": None if self.unlike is None else self.unlike.usual,
        }

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that was stored."""
        stress, usual = options["stress_scale"], options.get("usual_novelty")
        features = tensors["centre"], tensors["whitening"]
        return cls(
            LastLayer.restore(tensors),
            *features,
            tensors.get("forces_scale"),
            stress_scale=None if stress is None else float(stress),
            forces_law=Law(float(options["power"]), _ceiling(options, "ceiling")),
            energy_law=Law(float(options["energy_power"]) - 1, _ceiling(options, "energy_ceiling")),
            energy_modelled=bool(options["energy_modelled"]),
            noise={str(name): float(value) for name, value in options["noise"].items()},
            unlike=None
            if usual is None
            else Novelty(*features, tensors["novelty_gains"], float(usual)),
        )

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision of the weights."""
        scale = self.forces_scale
        return replace(
            self,
            last=self.last.to(device=device, dtype=dtype),
            centre=self.centre.to(device=device),
            whitening=self.whitening.to(device=device),
            forces_scale=None if scale is None else scale.to(device=device),
            unlike=None if self.unlike is None else self.unlike.to(device=device),
        )


def fit(
    model: LinearModel,
    params: Params,
    train: Dataset,
    valid: Dataset,
    *,
    options: DistanceOptions,
    lambdas: Lambdas,
    progress: Callable[[int], None] = lambda _: None,
) -> Distance:
    """Attach distances to trained weights, which stay as they are.

    `lambdas` are those of the training loss. `progress` hears how many structures are done, of
    len(train) + len(valid).
    """
    params = {name: value.detach() for name, value in params.items()}
    seen = training_features(model, params, train, progress)
    root = inverse_root(seen.structures, options.rigidity)
    _, smooth = whitened(seen, REGULARISATION)
    last = LastLayer(params, last_layer_places(model, params), root)
    laws = (
        Law(options.power, options.ceiling),
        Law(options.energy_power - 1, options.energy_ceiling),
    )

    def bare(regularisation: float) -> Distance:
        centre, whitening = whitened(seen, regularisation)
        ones = torch.ones(len(centre), dtype=_REAL, device=root.device)
        unlike = Novelty.fitted(seen.means, centre, whitening, smooth)
        return Distance(last, centre, whitening, ones, 1.0, *laws, True, {}, unlike)

    found = options.regularisation
    if found is None:
        some = range(0, len(valid), max(1, len(valid) // _ENOUGH))
        seen_by = held_out([bare(each) for each in _GRID], model, params, valid, lambdas, some)
        losses = [unlikeliness(held) for held in seen_by]
        found = least_within(_GRID, losses, count=max(len(some), _FEW))
    chosen = bare(found)
    progress(len(train) + len(valid))
    return _scaled_to(chosen, *held_out([chosen], model, params, valid, lambdas))


def _scaled_to(bare: Distance, held: HeldOut) -> Distance:
    """The same with the scales that validation errors have."""
    root = bare.last.factor
    energy, stress = scaled(held.energy), scaled(held.stress)
    by_element, forces = scaled_forces(held, len(bare.centre))
    found = {"energy": energy, "forces": forces, "stress": stress}
    return replace(
        bare,
        last=replace(bare.last, factor=root * math.sqrt(energy.ignorance if energy else 0.0)),
        energy_modelled=energy is not None,
        forces_scale=None if by_element is None else by_element.to(root),
        stress_scale=None if stress is None else stress.ignorance,
        noise={name: each.noise for name, each in found.items() if each is not None},
    )


_REAL = torch.float64
_GRID = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the regularisation, ascending
_ENOUGH = 100  # structures that choose among them
_FEW = 50  # as which fewer count: they would not contradict anything


def _ceiling(options: Mapping[str, Any], name: str) -> float | None:
    """Of a file; those of before there were ceilings have none."""
    found = options.get(name)
    return None if found is None else float(found)


def _example(model: LinearModel, params: Params) -> Distance:
    last = last_layer(model, params)
    kinds, size = len(model.elements), len(last.places)
    draw = torch.randn(kinds, size, size + 1, generator=torch.Generator().manual_seed(1))
    normal = draw.to(last.factor)
    centre, whitening = normal[:, :, -1].contiguous(), normal[:, :, :-1] / size**0.5
    gains = torch.linspace(0.5, 1, size, dtype=_REAL, device=last.factor.device).repeat(kinds, 1)
    return Distance(
        last,
        centre,
        whitening,
        STEP**2 * torch.arange(1, kinds + 1, dtype=_REAL, device=last.factor.device),
        stress_scale=STEP**2,
        forces_law=Law(1.4, 3e4),
        energy_law=Law(0.9, 300.0),
        energy_modelled=True,
        noise={"energy": 0.5, "forces": 0.25, "stress": 2.0},
        unlike=Novelty(centre, whitening, gains, 0.5),
    )


METHODS = (DistanceOptions,)
