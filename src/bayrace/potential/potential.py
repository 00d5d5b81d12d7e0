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
    Shifted,
)
from bayrace.core.target import Target, target_of
from bayrace.data.check import check_frame
from bayrace.data.distances import Distances
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.models.noise import Lambdas
from bayrace.posterior.shifts import SEED
from bayrace.potential import artifact
from bayrace.potential.artifact import PotentialError
from bayrace.potential.leeway import leeway
from bayrace.potential.stored import check_weights, fields_of
from bayrace.predict.moments import concatenate, with_label_noise
from bayrace.predict.predict import (
    Predictive,
    Uncertainty,
    predict,
    predict_frames,
    reference_tensor,
    refuse_not_finite,
)
from bayrace.train import checkpoint

__all__ = [
    "Potential",
    "PotentialError",
    "decode",
    "encode",
    "refuse_property",
    "resolve_device",
    "resolve_dtype",
]


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
    def target(self) -> Target:
        """What it predicts of a structure: the energy, or another property without forces."""
        return target_of(self.spec)

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
        """Å: how far from the distances of the training data dynamics should come, if known."""
        usual = self.statistics.get("distance_gap") if self.distances is not None else None
        return leeway(self.spec) * float(usual) if usual else None

    def to(
        self, *, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> Potential:
        """The same potential on another device or in another precision."""
        where = None if device is None else resolve_device(device)
        real = None if dtype is None else resolve_dtype(dtype)
        result = replace(self, posterior=self.posterior.to(device=where, dtype=real))
        vars(result)["model"] = self.model  # holds no weights, so it is built only once
        return result

    def predict(
        self, structures: Any, *, stress: bool = False, uncertainty: Uncertainty = "full"
    ) -> Prediction:
        """Predictive moments of an `ase.Atoms`, a Frame, or a sequence of them, in their order.

        Stress is nan where not all directions are periodic. "energy" spares forces their variances.
        """
        batches = self.predict_frames(_frames(structures), stress=stress, uncertainty=uncertainty)
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

        `calibrated=False` leaves the variances as the posterior has them.
        """
        for group, prediction in predict_frames(
            self.predictive,
            frames,
            stress=stress,
            uncertainty=uncertainty,
            edge_budget=edge_budget,
            progress=progress,
        ):
            numbers = np.concatenate([frame.numbers for frame in group])
            if uncertainty != "none":
                prediction = self._finished(prediction, numbers, calibrated)
            periodic = torch.tensor([bool(frame.pbc.all()) for frame in group])
            yield group, self._checked(prediction, uncertainty, periodic)

    def predict_batch(
        self, batch: GraphBatch, *, stress: bool = False, uncertainty: Uncertainty = "full"
    ) -> Prediction:
        """Predict a batch of this potential's dtype and device, in file order; calibrated."""
        prediction = predict(self.predictive, batch, stress=stress, uncertainty=uncertainty)
        if uncertainty != "none":
            numbers = None
            if self.calibration is not None and self.calibration.by_element:
                known = torch.tensor(self.elements, device=batch.species.device)
                numbers = known[batch.species[batch.file_order]]
            prediction = self._finished(prediction, numbers, calibrated=True)
        return self._checked(prediction, uncertainty, batch.volume.isfinite() if stress else None)

    def _checked(
        self, prediction: Prediction, uncertainty: Uncertainty, periodic: Tensor | None
    ) -> Prediction:
        """The prediction, if it consists of numbers."""
        return refuse_not_finite(
            prediction, uncertainty=uncertainty, periodic=periodic, forces=self.target.is_energy
        )

    def _finished(
        self, prediction: Prediction, numbers: Tensor | NDArray[np.int64] | None, calibrated: bool
    ) -> Prediction:
        """With the noise that only the posterior knows, and calibrated."""
        noise = self._label_noise
        prediction = with_label_noise(prediction, noise) if noise else prediction
        if self.calibration is None or not calibrated:
            return prediction
        return self.calibration.apply(prediction, numbers)

    @cached_property
    def _label_noise(self) -> Mapping[str, float]:
        """σ of the labels by quantity, where only the posterior knows it."""
        return self.posterior.label_noise() if isinstance(self.posterior, Noisy) else {}

    @cached_property
    def predictive(self) -> Predictive:
        """What predictions are made with, before they are calibrated."""
        of, lambdas = self.posterior, self.lambdas
        closed = of if isinstance(of, ClosedForm) else None
        if isinstance(of, NoiseScaled):
            lambdas = lambdas.scaled(of.noise_scale())
        return Predictive(self.model, self.folded, self.origins, lambdas, closed)

    def save(self, path: str | Path) -> None:
        """Write one self-describing file; an older file at `path` is replaced as a whole."""
        path = Path(path)
        check_weights(self.posterior, self.model, path)
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
        return _checked_potential(artifact.read(Path(path)), Path(path)).to(
            device=device, dtype=dtype
        )


def decode(content: bytes, *, device: str | torch.device = "auto") -> Potential:
    """The potential whose `encode` these bytes are, after the same checks as of a file."""
    where = Path("a potential in memory")
    return _checked_potential(artifact.decode(content, where), where).to(device=device)


def _checked_potential(contents: artifact.Contents, path: Path) -> Potential:
    potential = Potential(**fields_of(contents, path))
    check_weights(potential.posterior, potential.model, path)
    return potential


def refuse_property(potential: Potential, what: str) -> None:
    """Refuse a potential that predicts another property than the energy, where forces are needed.

    Raises:
        PotentialError: names the property and what to do.
    """
    target = potential.target
    if not target.is_energy:
        raise PotentialError(
            f"this file predicts {target.name} ({target.unit}), which has no forces; {what} needs "
            "an energy. Use bayrace predict, or Potential.predict in Python"
        )


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
        found = torch.device(device)
    except RuntimeError as error:
        raise PotentialError(f"device={device!r} is unknown; use auto, cpu or cuda") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise PotentialError(_no_gpu(str(device)))
    try:
        torch.zeros(1, device=found).item()  # of "meta" nothing can be computed either
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise PotentialError(
            f"device={str(device)!r} cannot be used here; use auto, cpu or cuda"
        ) from error
    return found


def _no_gpu(device: str) -> str:
    count = torch.cuda.device_count()
    seen = f"{count} GPU{'s' if count > 1 else ''}" if count else "no GPU"
    return f"device={device!r}, but torch sees {seen}; use auto or cpu" + (
        f", or cuda:0 to cuda:{count - 1}" if count else ""
    )


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
