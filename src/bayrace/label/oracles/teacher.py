"""A bayrace potential that labels for another: free labels, for tests and for distillation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import MinLen

from bayrace.data.frame import Frame
from bayrace.label.oracle import OracleError, labelled
from bayrace.potential.potential import Potential


@dataclass(frozen=True)
class TeacherOracle:
    """A bayrace potential: its mean prediction, stress included where fully periodic."""

    name: ClassVar[str] = "teacher"
    model: Annotated[str, MinLen(1)]
    """File of the potential."""
    device: str = "cpu"
    """auto, cpu or cuda."""

    @property
    def method(self) -> str:
        """The file and the beginning of its hash."""
        return f"potential {Path(self.model).name}, sha256 {_hash(self.model, self._changed)}"

    def label(self, frame: Frame) -> Frame:
        """Energy, forces, and stress where fully periodic."""
        potential = _load(self.model, self.device, self._changed)
        stress = bool(frame.pbc.all())
        batches = potential.predict_frames([frame], stress=stress, uncertainty="none")
        _, prediction = next(iter(batches))
        results = {
            "energy": float(prediction.energy.mean[0]),
            "forces": prediction.forces.mean.numpy(force=True),
        }
        if prediction.stress is not None:
            results["stress"] = prediction.stress.mean[0].numpy(force=True)
        return labelled(frame, results)

    @property
    def _changed(self) -> int:
        path = Path(self.model)
        if not path.is_file():
            raise OracleError(f"{path}: no such file; give the potential that labels")
        return path.stat().st_mtime_ns


@lru_cache(maxsize=2)
def _load(model: str, device: str, changed: int) -> Potential:  # noqa: ARG001 - a newer file
    return Potential.load(model, device=device)


@lru_cache(maxsize=8)
def _hash(model: str, changed: int) -> str:  # noqa: ARG001 - a newer file
    return hashlib.sha256(Path(model).read_bytes()).hexdigest()[:12]


METHODS = (TeacherOracle,)
