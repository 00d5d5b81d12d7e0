"""Potential: a trained model, its posterior, calibration and provenance: THE file users share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bayrace
from bayrace.calibrate.calibration import Calibration
from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.core.prediction import Prediction
from bayrace.core.protocols import (
    ClosedForm,
    Foldable,
    Model,
    ModelSpec,
    NoiseScaled,
    Noisy,
    Posterior,
    Shaped,
    Shifted,
)
from bayrace.data.check import check_frame
from bayrace.data.distances import Distances
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.models import spec_class
from bayrace.models.noise import Lambdas
from bayrace.posterior import restore
from bayrace.posterior.point import Point
from bayrace.posterior.shifts import SEED
from bayrace.potential import artifact
from bayrace.potential.artifact import COPY, Contents, PotentialError
from bayrace.predict.moments import concatenate, with_label_noise, with_scaled_noise
from bayrace.predict.predict import Uncertainty, predict, predict_frames, reference_tensor
from bayrace.train import checkpoint

__all__ = ["Potential", "PotentialError", "encode", "resolve_device", "resolve_dtype"]


@dataclass(frozen=True, eq=False)
class Potential:
    """Everything needed to predict, and where it came from."""

    spec: ModelSpec  # of any kind that `bayrace.models` knows
    posterior: Posterior  # over the weights; posterior.name is the algorithm
    references: Mapping[int, float]  # eV of an isolated atom, by atomic number
    lambdas: Lambdas  # weights the losses used; predictions are corrected for them
    statistics: Mapping[str, Any]  # JSON: measured on training data
    config: Mapping[str, Any]  # JSON: the whole configuration of the run
    fingerprint: str  # SHA-256 of the training frames
    calibration: Calibration | None = None  # of the variances, applied to every prediction
    frames: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Hashes of the frames it has seen: "train", "valid", "test", "calibration"."""
    distances: Distances | None = None  # between atoms of the training data
    version: str = field(default_factory=lambda: bayrace.__version__)  # bayrace that trained it

    @cached_property
    def model(self) -> Model:
        """The energy function that the members parametrise."""
        return self.spec.build()

    @cached_property
    def members(self) -> Params:
        """The weight samples that predictions use, stacked (M, ...)."""
        return self.posterior.draw(self.posterior.samples, seed=SEED)

    @cached_property
    def folded(self) -> Params:
        """Members with everything multiplied out that predictions share; made when first used."""
        model = self.model
        if not isinstance(model, Foldable):
            return self.members
        with torch.no_grad():
            folded: Params = torch.func.vmap(model.fold)(dict(self.members))
        return folded

    @cached_property
    def origins(self) -> Tensor:
        """Energies of isolated atoms, eV, float64: (Z,), or (M, Z) where members have their own."""
        references = reference_tensor(self.references, self.elements)
        posterior = self.posterior
        if not isinstance(posterior, Shifted):
            return references
        shifts = posterior.shifts(posterior.samples, seed=SEED)
        return references if shifts is None else references + shifts.to(references.device)

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers the model was trained on, ascending."""
        return self.model.elements

    @property
    def device(self) -> torch.device:
        """Where the weights live, and so where predictions are computed."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the network; energies are summed in float64 regardless."""
        return self._weight.dtype

    @cached_property
    def _weight(self) -> Tensor:
        return next(iter(self.posterior.draw(1, seed=SEED).values()))

    @property
    def gap_limit(self) -> float | None:
        """Å: twice the gap that is usual between distances of the training data, if it is known.

        Dynamics should not come to a distance that is farther from all of them.
        """
        usual = self.statistics.get("distance_gap") if self.distances is not None else None
        return 2 * float(usual) if usual else None

    def to(
        self, *, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> Potential:
        """The same potential on another device or in another precision."""
        where = None if device is None else resolve_device(device)
        real = None if dtype is None else resolve_dtype(dtype)
        result = replace(self, posterior=self.posterior.to(device=where, dtype=real))
        vars(result)["model"] = self.model  # holds no weights, so it is built only once
        return result

    def predict(self, structures: Any, *, stress: bool = False) -> Prediction:
        """Predictive moments of an `ase.Atoms`, a Frame, or a sequence of them, in their order.

        Stress is nan for structures that are not periodic in all three directions.
        """
        batches = self.predict_frames(_frames(structures), stress=stress)
        return concatenate([prediction for _, prediction in batches])

    def predict_frames(
        self,
        frames: Iterable[Frame],
        *,
        stress: bool = False,
        uncertainty: Uncertainty = "full",
        calibrated: bool = True,
        edge_budget: int = 20_000,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[list[Frame], Prediction]]:
        """Predict any number of frames in bounded memory, a batch of consecutive ones at a time.

        See `bayrace.predict.predict.predict_frames`; `calibrated=False` leaves the variances as the
        posterior has them.
        """
        for group, prediction in predict_frames(
            self.model,
            self.folded,
            frames,
            references=self.origins,
            lambdas=self.lambdas,
            stress=stress,
            uncertainty=uncertainty,
            closed=self._closed,
            edge_budget=edge_budget,
            progress=progress,
        ):
            numbers = np.concatenate([frame.numbers for frame in group])
            known = uncertainty != "none"
            yield group, self._finished(prediction, numbers, calibrated) if known else prediction

    def predict_batch(
        self, batch: GraphBatch, *, stress: bool = False, uncertainty: Uncertainty = "full"
    ) -> Prediction:
        """Predict a batch of this potential's dtype and device, in file order; calibrated."""
        prediction = predict(
            self.model,
            self.folded,
            batch,
            references=self.origins,
            lambdas=self.lambdas,
            stress=stress,
            uncertainty=uncertainty,
            closed=self._closed,
        )
        if uncertainty == "none":
            return prediction
        numbers = torch.tensor(self.elements, device=batch.species.device)[batch.species]
        return self._finished(prediction, numbers[batch.restore], calibrated=True)

    def _finished(
        self, prediction: Prediction, numbers: Tensor | NDArray[np.int64], calibrated: bool
    ) -> Prediction:
        """With the noise that only the posterior knows, and calibrated."""
        if isinstance(self.posterior, Noisy):
            prediction = with_label_noise(prediction, self.posterior.label_noise())
        if isinstance(self.posterior, NoiseScaled):
            prediction = with_scaled_noise(prediction, self.posterior.noise_scale())
        if self.calibration is None or not calibrated:
            return prediction
        return self.calibration.apply(prediction, numbers)

    @property
    def _closed(self) -> ClosedForm | None:
        return self.posterior if isinstance(self.posterior, ClosedForm) else None

    def save(self, path: str | Path) -> None:
        """Write one self-describing file; an older file at `path` is replaced as a whole."""
        path = Path(path)
        _check_weights(self.posterior.draw(1, seed=SEED), self.model, path)
        checkpoint.write_atomically(path, encode(self))

    @staticmethod
    def load(
        path: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
    ) -> Potential:
        """Read a file written by `save`, after checking that it is whole and unaltered.

        `device="auto"` takes a CUDA device if there is one, else the CPU; `dtype=None` keeps the
        precision of training.
        """
        path = Path(path)
        potential = _decode(artifact.read(path), path)
        _check_weights(potential.posterior.draw(1, seed=SEED), potential.model, path)
        return potential.to(device=device, dtype=dtype)


def encode(potential: Potential) -> bytes:
    """The bytes of a potential's file."""
    posterior, calibration = potential.posterior, potential.calibration
    document = {
        "model": potential.spec.name,
        "spec": potential.spec.to_json(),
        "posterior": {"name": posterior.name, "options": posterior.options()},
        "references": {str(z): float(e) for z, e in sorted(potential.references.items())},
        "lambdas": vars(potential.lambdas),
        "statistics": potential.statistics,
        "config": potential.config,
        "calibration": None if calibration is None else calibration.to_json(),
        "fingerprint": potential.fingerprint,
        "version": potential.version,
    }
    tensors = {f"posterior/{name}": value for name, value in posterior.tensors().items()}
    tensors |= {f"frames/{k}": torch.from_numpy(v) for k, v in potential.frames.items()}
    if potential.distances is not None:
        counts = potential.distances.arrays()
        tensors |= {f"distances/{k}": torch.from_numpy(v) for k, v in counts.items()}
    return artifact.encode(document, tensors)


def resolve_device(device: str | torch.device) -> torch.device:
    """A torch device; "auto" is CUDA if present, else CPU (MPS has no float64)."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise PotentialError(f"device={device!r} is unknown; use auto, cpu or cuda") from error


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from itself or its name: float32 or float64."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise PotentialError(f"dtype={name!r} is not supported; use one of {sorted(_DTYPES)}")
    return _DTYPES[name]


_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _frames(structures: Any) -> Iterable[Frame]:
    single = isinstance(structures, Frame) or hasattr(structures, "get_positions")
    for index, item in enumerate([structures] if single else structures):
        frame = item if isinstance(item, Frame) else frame_from_atoms(item, keys=None, index=index)
        check_frame(frame)
        yield frame


def _decode(contents: Contents, path: Path) -> Potential:
    document = contents.document
    try:
        calibration = document.get("calibration")
        spec = spec_class(document.get("model", "race")).from_json(document["spec"])
        distances = _arrays(contents, "distances")
        return Potential(
            spec=spec,
            posterior=_posterior(contents),
            references={int(z): float(e) for z, e in document["references"].items()},
            lambdas=Lambdas(**document["lambdas"]),
            statistics=document["statistics"],
            config=document["config"],
            fingerprint=document["fingerprint"],
            calibration=None if calibration is None else Calibration.from_json(calibration),
            frames=_arrays(contents, "frames"),
            distances=Distances.restore(spec.cutoff, distances) if distances else None,
            version=document["version"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PotentialError(
            f"{path} describes a model this bayrace ({bayrace.__version__}) cannot build "
            f"({type(error).__name__}: {error}); use the version that wrote it"
        ) from error


def _arrays(contents: Contents, group: str) -> dict[str, Any]:
    return {k: v.numpy() for k, v in checkpoint.group(contents.tensors, group).items()}


def _posterior(contents: Contents) -> Posterior:
    stored, tensors = contents.document["posterior"], contents.tensors
    if contents.version > 1:
        return restore(stored["name"], checkpoint.group(tensors, "posterior"), stored["options"])
    if stored == "point":
        return Point({name: value[0] for name, value in tensors.items()})
    return restore(stored, tensors, {})


def _check_weights(members: Params, model: Model, path: Path) -> None:
    """Refuse weights that are not those of the model, one leading dimension apart."""
    if isinstance(model, Shaped):
        expected = {name: tuple(shape) for name, shape in model.shapes.items()}
    else:
        expected = {name: tuple(value.shape) for name, value in model.init(0).items()}
    missing, extra = sorted(expected.keys() - members), sorted(members.keys() - expected)
    if missing or extra:
        raise PotentialError(
            f"{path}: weights do not fit the model: missing {missing}, unexpected {extra}; {COPY}"
        )
    for name, shape in expected.items():
        found = tuple(members[name].shape[1:])
        if found != shape:
            raise PotentialError(
                f"{path}: weight {name} has shape {found}, the model needs {shape}; {COPY}"
            )
        if not bool(torch.isfinite(members[name]).all()):
            raise PotentialError(f"{path}: weight {name} is not finite everywhere; train anew")
