"""Springs between all atoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt

from bayrace.data.frame import Frame
from bayrace.label.oracle import labelled


@dataclass(frozen=True)
class Springs:
    """Springs between all atoms of a molecule."""

    name: ClassVar[str] = "springs"
    stiffness: Annotated[float, Gt(0)] = 1.0
    """Of each spring, eV/Å²."""
    length: float = 1.2
    """Of a spring at rest, Å."""

    @property
    def method(self) -> str:
        return f"springs of {self.stiffness:g} eV/Å² and {self.length:g} Å"

    def label(self, frame: Frame) -> Frame:
        vector = frame.positions[:, None] - frame.positions[None]
        distance = np.linalg.norm(vector, axis=-1) + np.eye(len(vector))
        strain = (distance - self.length) * (1 - np.eye(len(vector)))
        energy = self.stiffness * (strain**2).sum() / 4
        forces = -self.stiffness * (strain / distance)[..., None] * vector
        return labelled(frame, {"energy": energy, "forces": forces.sum(1)})
