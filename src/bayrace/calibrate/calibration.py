"""A fitted calibration: what it does to a prediction, and how a file stores it.

Means never move, so forces stay the derivative of the energy. Variances are multiplied by factor²,
the aleatoric and the epistemic part alike, and the Gaussian may give way to another shape. Factors
may go by element: that of a force is its atom's, that of an energy or a stress has the mean square
of those of its atoms. With a power b the factor is larger where σ is: it is multiplied by
(σ / pivot)^(b - 1), where σ² is the mean variance of the components, which does not change with the
orientation, and the σ of an energy counts per atom, so that the power does not change how it grows
with the size of a structure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.prediction import ErrorDistribution, Prediction, Uncertain

_LARGEST = 1e12  # factor of σ: beyond it, predictions and errors have nothing in common
_STEEPEST = 10.0  # power of σ


@dataclass(frozen=True)
class Recalibration:
    """What one quantity's predicted distribution is changed to."""

    factor: float  # σ is multiplied by it
    count: int  # errors it was fitted to
    shape: ErrorDistribution | None = None  # of the errors divided by the new σ; None is Gaussian
    by_element: Mapping[int, float] = field(default_factory=dict)  # factors, first choice
    power: float = 1.0  # of σ; 1 is proportional
    pivot: float = 1.0  # the σ, of energies per atom, whose factor is `factor` at any power
    interval: tuple[float, float] | None = None  # of the factor, 90 %, by drawing structures anew

    def __post_init__(self) -> None:
        """Refuse factors that make no standard deviation."""
        for factor in (self.factor, *self.by_element.values()):
            if not 1 / _LARGEST <= factor <= _LARGEST:  # nan included
                raise ValueError(
                    f"factor {factor} of σ is not between {1 / _LARGEST:g} and {_LARGEST:g}; "
                    "calibrate on more frames"
                )
        if not (0 <= self.power <= _STEEPEST and 1 / _LARGEST <= self.pivot <= _LARGEST):
            raise ValueError(
                f"σ to the power {self.power} from {self.pivot} on: no increasing function of σ, "
                f"or a steeper one than any data ask for (power {_STEEPEST:g}); calibrate on more "
                "frames"
            )

    def apply(
        self, value: Uncertain, numbers: Tensor | None = None, structure: Tensor | None = None
    ) -> Uncertain:
        """The same means with other variances.

        Factors by element ask for the atomic `numbers` (N,), and for what belongs to a structure
        also for the `structure` (N,) of each atom.
        """
        if value.shape is not None:
            raise ValueError("this prediction is calibrated already; calibrate the raw one")
        square = self.squares(value, numbers, structure)
        scalar = value.aleatoric.shape == value.mean.shape
        factor = square
        if isinstance(square, Tensor) and not scalar:
            factor = square[..., None, None]
        log = value.mean_log
        if log is not None:
            added = square.log() if isinstance(square, Tensor) else math.log(square)
            log = log + (1 if scalar else value.mean.shape[-1]) * added
        return Uncertain(
            value.mean,
            value.aleatoric * factor,
            value.epistemic * factor,
            self.shape,
            log,
        )

    def factors(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """The factor of each atom, (N,)."""
        return np.array([self.by_element.get(int(z), self.factor) for z in numbers])

    def one_factor(self, what: str) -> float:
        """The factor, where it is all there is; ValueError with the name of what knows no more."""
        if self.by_element or self.power != 1.0:
            raise ValueError(
                f"{what} knows one factor of σ, and this calibration has factors by element or a "
                "power; use bayrace calibrate --method scale"
            )
        return self.factor

    def squares(
        self, value: Uncertain, numbers: Tensor | None = None, structure: Tensor | None = None
    ) -> Tensor | float:
        """Factors of the variances, one of all or that of each, (N,) or (S,)."""
        square = self._constants(value.mean, numbers, structure)
        if self.power == 1.0:
            return square
        level = value.level
        energies = value.aleatoric.shape == value.mean.shape
        if energies and structure is not None:  # they grow with the number of atoms
            level = level / _averages(torch.ones_like(structure), structure, level)[1]
        ratio = level / self.pivot
        return square * torch.where(ratio > 0, ratio ** (2 * (self.power - 1)), 1.0)

    def _constants(
        self, mean: Tensor, numbers: Tensor | None, structure: Tensor | None
    ) -> Tensor | float:
        if not self.by_element:
            return self.factor**2
        if numbers is None:
            raise ValueError("factors by element need the atomic numbers of the atoms")
        factors = self.factors(numbers.numpy(force=True))
        square = torch.as_tensor(factors**2, dtype=mean.dtype, device=mean.device)
        return square if structure is None else _averages(square, structure, mean)[0]

    def to_json(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        shape = None if self.shape is None else {"z": list(self.shape.z), "p": list(self.shape.p)}
        elements = {str(z): factor for z, factor in sorted(self.by_element.items())}
        return {
            "factor": self.factor,
            "count": self.count,
            "shape": shape,
            "by_element": elements,
            "power": self.power,
            "pivot": self.pivot,
            "interval": None if self.interval is None else list(self.interval),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recalibration:
        """The inverse of `to_json`."""
        shape, interval = content["shape"], content.get("interval")
        return cls(
            factor=float(content["factor"]),
            count=int(content["count"]),
            shape=None
            if shape is None
            else ErrorDistribution(tuple(shape["z"]), tuple(shape["p"])),
            by_element={int(z): float(factor) for z, factor in content["by_element"].items()},
            power=float(content.get("power", 1.0)),
            pivot=float(content.get("pivot", 1.0)),
            interval=None if interval is None else (float(interval[0]), float(interval[1])),
        )


@dataclass(frozen=True)
class Calibration:
    """A recalibration of each quantity; None leaves the quantity as it is."""

    method: str
    energy: Recalibration | None
    forces: Recalibration | None
    stress: Recalibration | None
    frames: int  # how many it was fitted to
    fingerprint: str  # SHA-256 of those frames

    def __post_init__(self) -> None:
        """Refuse skewed distributions of vectors, which would not turn with the structure."""
        for name in ("forces", "stress"):
            fitted: Recalibration | None = getattr(self, name)
            if fitted is not None and fitted.shape is not None and not fitted.shape.symmetric:
                raise ValueError(f"the shape of the {name} is skewed; fit a symmetric one")

    @property
    def by_element(self) -> bool:
        """Whether `apply` needs the atomic numbers."""
        fitted = (getattr(self, name) for name in _QUANTITIES)
        return any(each is not None and each.by_element for each in fitted)

    def apply(
        self, prediction: Prediction, numbers: Tensor | NDArray[np.int64] | None = None
    ) -> Prediction:
        """The calibrated prediction; `numbers` (N,) are the atomic numbers in its order."""
        atoms = None if numbers is None else torch.as_tensor(numbers)
        stress, atomic, structure = (
            prediction.stress,
            prediction.atomic_epistemic,
            prediction.structure_index,
        )
        if atomic is not None and self.energy is not None:  # atoms as their structure
            square = self.energy.squares(prediction.energy, atoms, structure)
            atomic = atomic * (square[structure] if isinstance(square, Tensor) else square)
        return replace(
            prediction,
            atomic_epistemic=atomic,
            energy=_applied(self.energy, prediction.energy, atoms, structure),
            forces=_applied(self.forces, prediction.forces, atoms),
            stress=None if stress is None else _applied(self.stress, stress, atoms, structure),
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        fitted = {name: getattr(self, name) for name in _QUANTITIES}
        return {
            "method": self.method,
            **{name: None if each is None else each.to_json() for name, each in fitted.items()},
            "frames": self.frames,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`."""
        fitted = {
            name: None if content[name] is None else Recalibration.from_json(content[name])
            for name in _QUANTITIES
        }
        return cls(
            method=str(content["method"]),
            **fitted,
            frames=int(content["frames"]),
            fingerprint=str(content["fingerprint"]),
        )


_QUANTITIES = ("energy", "forces", "stress")


def _averages(values: Tensor, structure: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Means (S,) of atoms' values (N,) over their structures, and how many atoms these have."""
    structure = structure.to(like.device)
    total, atoms = (like.new_zeros(len(like)) for _ in range(2))
    atoms = atoms.index_add(0, structure, like.new_ones(len(structure)))
    return total.index_add(0, structure, values.to(like)) / atoms, atoms


def _applied(
    fitted: Recalibration | None,
    value: Uncertain,
    numbers: Tensor | None,
    structure: Tensor | None = None,
) -> Uncertain:
    return value if fitted is None else fitted.apply(value, numbers, structure)
