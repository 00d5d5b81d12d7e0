"""Evaluations as the report needs them: flat numbers that have labels, and who they belong to.

The only file of the report that knows Evaluation; everything else is written against Judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.calibrate.seen import overlap
from bayrace.core.prediction import ErrorDistribution
from bayrace.core.target import ENERGY, Target
from bayrace.data.read import Frame
from bayrace.evaluate.evaluation import Compared, Evaluation, evaluate
from bayrace.potential.potential import Potential

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Role = Literal["test", "ood"]
LEVEL = 0.9  # of the intervals that are drawn


@dataclass(frozen=True, eq=False)
class Quantity:
    """The n labelled numbers of one quantity in a set, in file order, eV and Å."""

    label: Array  # (n,)
    mean: Array  # (n,)
    std: Array  # (n,) predicted standard deviation; all zero where none is predicted
    aleatoric: Array  # (n,) its part from noise
    epistemic: Array  # (n,) its part from the posterior
    pit: Array  # (n,) predicted probability of values below the label
    low: Array  # (n,) ends of the central 90 % interval
    high: Array  # (n,)
    frame: Integers  # (n,) structure within the set
    atom: Integers  # (n,) atom within the structure; -1 for what belongs to the whole
    number: Integers  # (n,) atomic number; 0 for what belongs to the whole

    @property
    def size(self) -> int:
        """How many labels there are, n."""
        return self.label.size

    @property
    def uncertain(self) -> bool:
        """Whether a spread was predicted at all; nan is none."""
        return bool((self.std > 0).any())

    @property
    def error(self) -> Array:
        """Prediction minus label, (n,)."""
        return self.mean - self.label

    @property
    def rmse(self) -> float:
        """nan without labels."""
        return float(np.sqrt(np.mean(self.error**2))) if self.size else np.nan

    @property
    def mae(self) -> float:
        """nan without labels."""
        return float(np.mean(np.abs(self.error))) if self.size else np.nan

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Which labels lie in their 90 % interval, (n,)."""
        return (self.label >= self.low) & (self.label <= self.high)

    def chosen(self, which: NDArray[np.bool_]) -> Quantity:
        """Some of the numbers."""
        return Quantity(*(value[which] for value in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Judged:
    """A potential on one set of S structures with N atoms."""

    name: str
    role: Role
    frames: Sequence[Frame]
    energy: Quantity
    forces: Quantity
    stress: Quantity  # eV/Å³
    raw_energy: Quantity | None  # before recalibration; None where there is no recalibration
    raw_forces: Quantity | None
    force_error: Array  # (N, 3) eV/Å, nan without a label
    force_std: Array  # (N,) eV/Å, root mean square over directions
    atomic_std: Array  # (N,) eV, epistemic σ of the energy of each atom; nan where not modelled
    seen: Mapping[str, int]  # structures the potential was made with, by what they were for
    scores: Mapping[
        str, Array
    ]  # (S,) by name: large for unknown structures; none of only zeros, or unknown
    target: Target = ENERGY  # that `energy` holds, in its unit

    @property
    def atom_counts(self) -> Integers:
        """Atoms of each structure, (S,)."""
        return np.array([len(frame.numbers) for frame in self.frames], dtype=np.int64)

    @property
    def starts(self) -> Integers:
        """First atom of each structure and the end, (S + 1,)."""
        return np.concatenate([[0], np.cumsum(self.atom_counts)])

    @property
    def uncertain(self) -> bool:
        """Whether any spread was predicted."""
        return self.energy.uncertain or self.forces.uncertain

    @property
    def recalibrated(self) -> bool:
        """Whether there is a state before."""
        return self.raw_energy is not None or self.raw_forces is not None


ENERGY_SCORE, FORCES_SCORE = "energy_total", "forces_mean_total"  # of structure_scores


def judge_frames(
    potential: Potential,
    frames: Sequence[Frame],
    *,
    name: str,
    role: Role,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Judged:
    """Evaluate a potential on frames; twice if it has a calibration, without and with it."""

    def evaluated(*, calibrated: bool) -> Evaluation:
        return evaluate(
            potential,
            frames,
            name=name,
            calibrated=calibrated,
            edge_budget=edge_budget,
            progress=progress,
        )

    calibration = potential.calibration
    return judge(
        evaluated(calibrated=True),
        frames,
        role=role,
        raw=None if calibration is None else evaluated(calibrated=False),
        calibration=calibration,
        seen=overlap(potential.frames, frames),
    )


def judge(
    evaluation: Evaluation,
    frames: Sequence[Frame],
    *,
    role: Role,
    raw: Evaluation | None = None,
    calibration: Calibration | None = None,
    seen: Mapping[str, int] | None = None,
) -> Judged:
    """Flatten an evaluation; `raw` is the same without the potential's `calibration`.

    `seen` says how many of the frames were used in making the potential, see `overlap`.
    """
    if len(frames) != len(evaluation.atom_counts):
        raise ValueError(
            f"{len(frames)} frames and an evaluation of {len(evaluation.atom_counts)}; give the "
            f"frames that {evaluation.name!r} was evaluated on"
        )
    return Judged(
        name=evaluation.name,
        role=role,
        frames=frames,
        energy=_quantity(evaluation, "energy", calibration),
        forces=_quantity(evaluation, "forces", calibration),
        stress=_quantity(evaluation, "stress", calibration),
        raw_energy=None if raw is None else _quantity(raw, "energy", None),
        raw_forces=None if raw is None else _quantity(raw, "forces", None),
        force_error=evaluation.forces.error,
        force_std=np.sqrt(np.mean(evaluation.forces.std**2, axis=1)),
        atomic_std=evaluation.atomic_std,
        seen=seen or {},
        scores={name: each for name, each in evaluation.scores().items() if _says_something(each)},
        target=evaluation.target,
    )


def _quantity(evaluation: Evaluation, name: str, calibration: Calibration | None) -> Quantity:
    compared: Compared = getattr(evaluation, name)
    known = ~np.isnan(compared.label)
    fitted: Recalibration | None = getattr(calibration, name) if calibration else None
    low, high = _ends(None if fitted is None else fitted.shape)
    part = compared.known()
    frame, atom, number = (
        np.broadcast_to(each.reshape(len(each), *[1] * (known.ndim - 1)), known.shape)[known]
        for each in _places(evaluation, by_atom=name == "forces")
    )
    return Quantity(
        label=part.label,
        mean=part.mean,
        std=part.std,
        aleatoric=part.aleatoric,
        epistemic=part.epistemic,
        pit=part.pit,
        low=part.mean + low * part.std,
        high=part.mean + high * part.std,
        frame=frame,
        atom=atom,
        number=number,
    )


def _places(evaluation: Evaluation, *, by_atom: bool) -> tuple[Integers, Integers, Integers]:
    """Structure, atom within it and atomic number of each row of a quantity."""
    counts = evaluation.atom_counts
    frame = np.arange(len(counts))
    if not by_atom:
        return frame, np.full_like(frame, -1), np.zeros_like(frame)
    structure = np.repeat(frame, counts)
    first = np.cumsum(counts) - counts
    return structure, np.arange(len(structure)) - first[structure], evaluation.numbers


def _ends(shape: ErrorDistribution | None) -> tuple[float, float]:
    """Standardised ends of the central interval."""
    levels = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    ends = torch.special.ndtri(levels) if shape is None else shape.quantile(levels)
    low, high = ends.tolist()
    return low, high


def _says_something(scores: Array) -> bool:
    return bool(scores.any() and not np.isnan(scores).any())
