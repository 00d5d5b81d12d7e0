"""From what a potential's file says to the fields of a Potential, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import bayrace
from bayrace.calibrate.calibration import Calibration
from bayrace.calibrate.fit import GROWTH, Powers
from bayrace.core.noise import NO_NOISE, NoiseSpec
from bayrace.core.protocols import Model, Posterior
from bayrace.core.shapes import parameter_shapes
from bayrace.data.distances import Distances
from bayrace.models import spec_class
from bayrace.models.noise import Lambdas
from bayrace.models.race.stored_spec import real
from bayrace.posterior import POSTERIORS, restore
from bayrace.posterior.point import Point
from bayrace.posterior.stored import check_stored
from bayrace.potential.artifact import COPY, Contents, PotentialError
from bayrace.potential.leeway import strict_below
from bayrace.predict.predict import reference_tensor
from bayrace.train import checkpoint


def fields_of(contents: Contents, path: Path) -> dict[str, Any]:
    """The fields of a Potential from a file that may say anything.

    Whatever it is not, is a PotentialError.
    """
    try:
        return _read(contents)
    except _WRONG as error:
        raise PotentialError(
            f"{path} describes a model this bayrace ({bayrace.__version__}) cannot build "
            f"({type(error).__name__}: {error}); use the version that wrote it"
        ) from error


_LEAST = 1e-30  # weight of a quantity with noise
# What Python and torch raise where a document has other types or sizes than they expect.
_WRONG = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def _read(contents: Contents) -> dict[str, Any]:
    document = contents.document
    calibration = document.get("calibration")
    spec = spec_class(document.get("model", "race")).from_json(document["spec"])
    distances = _arrays(contents, "distances")
    statistics, config = document["statistics"], document["config"]
    for name in ("statistics", "config"):
        if not isinstance(document[name], dict):
            raise ValueError(f"{name} is a {type(document[name]).__name__}, not a mapping")
    if not isinstance(config.get("data", {}), dict):
        raise ValueError("config.data is not a mapping")
    for name in ("distance_gap", "mean_neighbours"):
        if statistics.get(name) is not None:
            real(name, statistics[name], least=0.0, most=1e6)
    for name, power in Powers.known(statistics)._asdict().items():
        real(f"{GROWTH}.{name}", power, least=0.0, most=4.0)
    energies = {z: real("reference", e, least=-1e9, most=1e9) for z, e in _pairs(document)}
    reference_tensor(energies, spec.elements)
    return {
        "spec": spec,
        "posterior": _posterior(contents),
        "references": energies,
        "lambdas": _lambdas(document["lambdas"], getattr(spec, "noise", NO_NOISE)),
        "statistics": statistics,
        "config": config,
        "fingerprint": str(document["fingerprint"]),
        "calibration": None if calibration is None else Calibration.from_json(calibration),
        "frames": _arrays(contents, "frames"),
        "distances": strict_below(Distances.restore(spec.cutoff, distances), spec)
        if distances
        else None,
        "version": str(document["version"]),
    }


def _lambdas(document: Mapping[str, Any], noise: NoiseSpec) -> Lambdas:
    """Weights of the loss; variances are divided by those of quantities that have noise."""
    least = {"energy": 0.0, "forces": 0.0, "stress": 0.0}
    least |= dict.fromkeys(noise.quantities, _LEAST)
    return Lambdas(
        **{name: real(name, document[name], least=low, most=1e30) for name, low in least.items()}
    )


def _pairs(document: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    for number, energy in document["references"].items():
        yield int(number), energy


def _arrays(contents: Contents, group: str) -> dict[str, Any]:
    return {k: v.numpy() for k, v in checkpoint.group(contents.tensors, group).items()}


def _posterior(contents: Contents) -> Posterior:
    stored, tensors = contents.document["posterior"], contents.tensors
    if contents.version > 1:
        return restore(stored["name"], checkpoint.group(tensors, "posterior"), stored["options"])
    if stored == "point":
        return Point({name: value[0] for name, value in tensors.items()})
    return restore(stored, tensors, {})


def check_weights(posterior: Posterior, model: Model, path: Path) -> None:
    """Refuse weights that are not those of the model."""
    try:
        layout = POSTERIORS.find(posterior.name).layout(posterior)
        check_stored(posterior, layout, parameter_shapes(model), elements=len(model.elements))
    except _WRONG as error:
        raise PotentialError(f"{path}: {error}; {COPY}") from error
