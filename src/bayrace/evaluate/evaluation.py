"""Compare a potential with labelled frames: errors, and how well it knew them.

A long stream is fine: a few numbers per label are kept, no covariances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.core.prediction import Prediction, Uncertain, standard_deviation
from bayrace.core.target import ENERGY, Target
from bayrace.data.labels import label_arrays
from bayrace.data.read import Frame
from bayrace.evaluate.metrics.accuracy import Accuracy, accuracy
from bayrace.evaluate.metrics.calibration import ellipsoid_mass
from bayrace.evaluate.metrics.ood import NOVELTY, structure_scores
from bayrace.evaluate.metrics.quality import Quality, Whitened, quality, whitened
from bayrace.evaluate.metrics.scoring import mahalanobis
from bayrace.potential.cluster import OnCluster
from bayrace.potential.potential import Potential
from bayrace.simulate.stop import radial_tail

Array = NDArray[np.float64]
Chosen = NDArray[np.bool_]
Batches = Iterable[tuple[Sequence[Frame], Prediction]]


@dataclass(frozen=True, eq=False)
class Compared:
    """Labels beside predictions of one quantity; a missing label is nan."""

    label: Array  # (n, ...) in the quantity's unit
    mean: Array  # the same shape, as all that follow
    std: Array  # total predicted standard deviation
    aleatoric: Array  # standard deviation of the noise
    epistemic: Array  # standard deviation from the posterior
    pit: Array  # predicted probability of values below the label

    @property
    def error(self) -> Array:
        """Prediction minus label."""
        return self.mean - self.label

    def chosen(self, which: Chosen) -> Compared:
        """Some of the numbers."""
        return Compared(*(value[which] for value in vars(self).values()))

    def known(self) -> Compared:
        """Only the numbers that have a label, flattened."""
        return self.chosen(~np.isnan(self.label))

    def spread(self, chosen: Chosen | None = None) -> float | None:
        """Root mean square of the predicted σ where labels exist; None if no noise is predicted.

        This is what the RMSE would be if the predicted σ were right.
        """
        part = self if chosen is None else self.chosen(chosen)
        std = part.known().std
        return float(np.sqrt(np.mean(std**2))) if std.size and std.any() else None

    def quality(self, chosen: Chosen | None = None) -> Quality | None:
        """Metrics of the predicted σ where labels exist; None if none is predicted."""
        part = (self if chosen is None else self.chosen(chosen)).known()
        return quality(
            part.error, part.std, part.pit, aleatoric=part.aleatoric, epistemic=part.epistemic
        )


@dataclass(frozen=True, eq=False)
class Distances:
    """Force errors measured by the predicted covariances; nan without a label or an inverse."""

    squared: Array  # (N,) squared Mahalanobis distance of label and mean
    logdet: Array  # (N,) log det of the covariance, (eV/Å)² inside
    mass: Array  # (N,) predicted probability of smaller distances, of the recalibrated errors

    def quality(self, chosen: Chosen) -> Whitened | None:
        """Metrics of the covariances of chosen atoms; None if any has no inverse."""
        return whitened(self.squared[chosen], self.logdet[chosen], self.mass[chosen])


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A potential on one set of S frames with N atoms."""

    name: str
    accuracy: Accuracy
    atom_counts: NDArray[np.int64]  # (S,) of each frame
    config_types: NDArray[np.str_]  # (S,)
    numbers: NDArray[np.int64]  # (N,) atomic numbers
    energy: Compared  # (S,) eV, or another property in its unit
    forces: Compared  # (N, 3) eV/Å
    stress: Compared  # (S, 6) eV/Å³
    distances: Distances  # (N,)
    atomic_std: Array  # (N,) eV, epistemic σ of the energy of each atom; nan where not modelled
    novelty: Array  # (S,), 1 is usual; nan where the posterior does not tell
    target: Target = ENERGY

    @property
    def energy_per_atom(self) -> Compared:
        """(S,) eV/atom."""
        scaled = {name: value / self.atom_counts for name, value in vars(self.energy).items()}
        return Compared(**scaled | {"pit": self.energy.pit})

    def scores(self) -> dict[str, Array]:
        """Numbers (S,) that should be large for unknown structures; see `structure_scores`."""
        energy = {"total": self.energy.std, "epistemic": self.energy.epistemic}
        forces = {"total": self.forces.std, "epistemic": self.forces.epistemic}
        known = forces if self.target.is_energy else {}
        own = {} if np.isnan(self.novelty).any() else {NOVELTY: self.novelty}
        return own | structure_scores(
            self.atom_counts, energy, known, extensive=self.target.extensive
        )

    def whitened(self, chosen: Chosen | None = None) -> Whitened | None:
        """Metrics of the force covariances of chosen atoms that have labels."""
        labelled: Chosen = ~np.isnan(self.forces.label.sum(axis=1))
        return self.distances.quality(labelled if chosen is None else labelled & chosen)

    def uncertainty(self, frames: Chosen | None = None) -> dict[str, Quality | None]:
        """Metrics of σ by quantity, of chosen frames (S,)."""
        atoms = None if frames is None else frames.repeat(self.atom_counts)
        return {
            "energy": self.energy.quality(frames),
            "forces": self.forces.quality(atoms),
            "stress": self.stress.quality(frames),
        }

    def to_json(self) -> dict[str, Any]:
        """JSON-able, eV and Å: errors, predicted σ (root mean square), metrics of uncertainty.

        Under "uncertainty" are those of the whole set, of forces by atomic number, and of each
        config_type; what has no value is None.
        """
        quantities = ("energy", "energy_per_atom", "forces", "stress")
        spreads = {name: getattr(self, name).spread() for name in quantities}
        elements = {
            str(number): _forces_json(self, self.numbers == number)
            for number in self.accuracy.forces_by_element
        }
        types = {
            name: _uncertainty_json(self, self.config_types == name)
            for name in self.accuracy.by_config_type
        }
        return {
            "name": self.name,
            "target": vars(self.target),
            **self.accuracy.to_json(),
            "predicted_std": spreads,
            "uncertainty": {
                **_uncertainty_json(self, np.ones(len(self.atom_counts), dtype=bool)),
                "forces_by_element": elements,
                "by_config_type": types,
            },
        }


def evaluate(
    potential: Potential | OnCluster,
    frames: Sequence[Frame],
    *,
    name: str,
    calibrated: bool = True,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Predict every frame and compare; `progress` hears how many frames are done.

    `calibrated=False` judges the variances as the posterior has them.
    """
    stress = any(frame.stress is not None and frame.pbc.all() for frame in frames)
    batches = potential.predict_frames(
        frames, stress=stress, calibrated=calibrated, edge_budget=edge_budget, progress=progress
    )
    return evaluate_predictions(batches, frames, name=name, target=potential.target)


def evaluate_predictions(
    batches: Batches, frames: Sequence[Frame], *, name: str, target: Target = ENERGY
) -> Evaluation:
    """Compare labels with predictions of their frames, as `Potential.predict_frames` yields."""
    parts: list[_Part] = []
    joined = _join(name, accuracy(_watched(batches, parts)), frames, parts)
    return replace(joined, target=target)


@dataclass(frozen=True, eq=False)
class _Part:
    """Comparisons of one batch."""

    energy: Compared
    forces: Compared
    stress: Compared
    distances: Distances
    atomic_std: Array
    novelty: Array


def _watched(batches: Batches, parts: list[_Part]) -> Iterator[tuple[Sequence[Frame], Prediction]]:
    """Pass batches on, keeping labels, means and σ of each in `parts`."""
    for frames, prediction in batches:
        labels = label_arrays(frames)
        compared = _compare(labels.forces, prediction.forces)
        parts.append(
            _Part(
                _compare(labels.energy, prediction.energy),
                compared,
                _compare(labels.stress, prediction.stress),
                _distances(compared.error, prediction.forces),
                _atomic_std(prediction),
                _novelty(prediction),
            )
        )
        yield frames, prediction


def _compare(label: Array, value: Uncertain | None) -> Compared:
    if value is None:
        return Compared(*([np.full_like(label, np.nan)] * 6))
    mean = value.mean.numpy(force=True)
    label = np.where(np.isnan(mean), np.nan, label)  # stress of a structure without a cell
    variances = (value.total, value.aleatoric, value.epistemic)
    std, aleatoric, epistemic = (
        standard_deviation(variance, like=value.mean).numpy(force=True) for variance in variances
    )
    pit = value.pit(torch.as_tensor(label, dtype=value.mean.dtype, device=value.mean.device))
    return Compared(label, mean, std, aleatoric, epistemic, pit.numpy(force=True))


def _atomic_std(prediction: Prediction) -> Array:
    variance = prediction.atomic_epistemic
    if variance is None:
        return np.full(len(prediction.structure_index), np.nan)
    std: Array = variance.sqrt().numpy(force=True)
    return std


def _novelty(prediction: Prediction) -> Array:
    if prediction.novelty is None:
        return np.full(len(prediction.energy.mean), np.nan)
    found: Array = prediction.novelty.numpy(force=True)
    return found


def _distances(error: Array, forces: Uncertain) -> Distances:
    """A shape that a calibration found is one of components, and its radius that of vectors."""
    squared, logdet = mahalanobis(error, forces.total.numpy(force=True))
    if forces.shape is None:
        return Distances(squared, logdet, ellipsoid_mass(squared))
    return Distances(squared, logdet, 1 - radial_tail(forces.shape)(np.sqrt(squared)))


def _join(
    name: str, errors: Accuracy, frames: Sequence[Frame], parts: Sequence[_Part]
) -> Evaluation:
    def joined(quantity: str) -> dict[str, Array]:
        pieces = [vars(getattr(part, quantity)) for part in parts]
        return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}

    return Evaluation(
        name=name,
        accuracy=errors,
        atom_counts=np.array([len(frame.numbers) for frame in frames], dtype=np.int64),
        config_types=np.array([frame.config_type for frame in frames], dtype=np.str_),
        numbers=np.concatenate([frame.numbers for frame in frames]),
        energy=Compared(**joined("energy")),
        forces=Compared(**joined("forces")),
        stress=Compared(**joined("stress")),
        distances=Distances(**joined("distances")),
        atomic_std=np.concatenate([part.atomic_std for part in parts]),
        novelty=np.concatenate([part.novelty for part in parts]),
    )


def _uncertainty_json(evaluation: Evaluation, frames: Chosen) -> dict[str, Any]:
    found = evaluation.uncertainty(frames)
    energy, stress = (found[name] for name in ("energy", "stress"))
    return {
        "energy": None if energy is None else energy.to_json(),
        "forces": _forces_json(evaluation, frames.repeat(evaluation.atom_counts)),
        "stress": None if stress is None else stress.to_json(),
    }


def _forces_json(evaluation: Evaluation, atoms: Chosen) -> dict[str, Any] | None:
    components, vectors = evaluation.forces.quality(atoms), evaluation.whitened(atoms)
    if components is None:
        return None
    return {**components.to_json(), "whitened": None if vectors is None else vectors.to_json()}
