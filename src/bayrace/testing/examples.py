"""One posterior of every kind around any weights, made in no time: for tests of what uses them.

They were not fitted to anything, so their uncertainties mean nothing; their laws are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.models.race.network import Race
from bayrace.posterior.distance import Distance
from bayrace.posterior.ensemble import Ensemble
from bayrace.posterior.gaussian.diagonal import Diagonal
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places
from bayrace.posterior.ivon import Ivon
from bayrace.posterior.laplace import Laplace, LinearisedLaplace
from bayrace.posterior.llpr import Llpr
from bayrace.posterior.point import Point
from bayrace.posterior.shallow import Shallow
from bayrace.posterior.swag import Collector, Swag

Example = Callable[[Race, Params], Posterior]

_SAMPLES = 8
_STEP = 0.05  # width of the posteriors; weights are of the order of 1


def _ensemble(params: Params) -> Ensemble:
    return Ensemble.of([_moved(params, seed) for seed in range(_SAMPLES)])


def _swag(params: Params) -> Swag:
    collector = Collector.empty(_SAMPLES)
    for seed in range(_SAMPLES + 2):
        collector = collector.add(_moved(params, seed))
    dtype = next(iter(params.values())).dtype
    return collector.posterior(scaling="maddox", samples=_SAMPLES, dtype=dtype)


def _ivon(params: Params) -> Ivon:
    hessian = {name: 0.5 + value.square() for name, value in params.items()}
    return Ivon(params, hessian, ess=_STEP**-2, weight_decay=1e-4, samples=_SAMPLES)


def _diagonal(params: Params) -> Diagonal:
    return Diagonal(params, {name: _STEP * value.abs() for name, value in params.items()})


def _last_layer(model: Race, params: Params) -> LastLayer:
    places = last_layer_places(model, params)
    size = len(places)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return LastLayer(params, places, (normal * _STEP / size**0.5).to(places.device))


def _distance(model: Race, params: Params) -> Distance:
    last = _last_layer(model, params)
    kinds, size = len(model.elements), len(last.places)
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(kinds, size, size + 1, generator=generator, dtype=torch.float64)
    normal = normal.to(last.factor)
    return Distance(
        last,
        normal[:, :, -1],
        normal[:, :, :-1] / size**0.5,
        _STEP**2 * torch.arange(1, kinds + 1, dtype=torch.float64, device=last.factor.device),
        stress_scale=_STEP**2,
        power=1.3,
        energy_power=1.5,
        energy_modelled=True,
        noise={"energy": 0.5, "forces": 0.25, "stress": 2.0},
    )


def _moved(params: Params, seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value
        + _STEP * torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        for name, value in params.items()
    }


EXAMPLES: dict[str, Example] = {
    "point": lambda _, params: Point(params),
    "ensemble": lambda _, params: _ensemble(params),
    "swag": lambda _, params: _swag(params),
    "ivon": lambda _, params: _ivon(params),
    "laplace, diagonal, sampled": lambda _, p: Laplace(_diagonal(p), _SAMPLES, {}),
    "laplace, diagonal, glm": lambda _, p: LinearisedLaplace(_diagonal(p), 1, {}),
    "laplace, last layer, sampled": lambda m, p: Laplace(_last_layer(m, p), _SAMPLES, {}),
    "laplace, last layer, glm": lambda m, p: LinearisedLaplace(_last_layer(m, p), 1, {}),
    "llpr": lambda m, p: Llpr(_last_layer(m, p), 1.0, 1e-6, alpha_forces=1.0, alpha_stress=1.0),
    "distance": lambda m, p: _distance(m, p),
    "shallow": lambda m, p: Shallow.of(m, p, energy_weight=1.0),  # of a network with members
}
"""By a label that begins with the name; each makes a posterior from a network and its weights."""
