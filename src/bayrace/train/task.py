"""What is trained on what, and how to recognise it again."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayrace.data.cache import Dataset, epoch_batches, equal_batches
from bayrace.data.split import frame_fingerprint
from bayrace.train.settings import TrainSettings
from bayrace.types import GraphBatch, Labels, Likelihood, Model


@dataclass(frozen=True, eq=False)
class Task:
    """The unchanging side of a run."""

    model: Model
    likelihood_at: Callable[[int], Likelihood]  # by epoch, from 0
    train: Dataset
    valid: Dataset
    settings: TrainSettings
    folder: Path

    def __post_init__(self) -> None:
        for name, dataset in (("training", self.train), ("validation", self.valid)):
            if len(dataset) == 0:
                raise ValueError(f"the {name} set has no frames; give it at least one")
            if dataset.elements != self.model.elements or dataset.cutoff != self.model.cutoff:
                raise ValueError(
                    f"the {name} set has elements {dataset.elements} and cutoff {dataset.cutoff}, "
                    f"the model {self.model.elements} and {self.model.cutoff}; "
                    "build the data set with the model's"
                )

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the training set."""
        budget = self.settings.edge_budget
        if budget is None:
            return math.ceil(len(self.train) / self.settings.batch_size)
        wanted = math.ceil(int(self.train.edges.sum()) / budget)
        return min(max(wanted, 1), len(self.train))

    def order(self, epoch: int) -> list[list[int]]:
        """Frames of each batch; depends on seed and epoch only, so that resuming is exact."""
        settings = self.settings
        if settings.edge_budget is not None:
            return equal_batches(
                self.train.edges, self.steps_per_epoch, seed=settings.seed, epoch=epoch
            )
        return epoch_batches(
            len(self.train), settings.batch_size, seed=settings.seed, epoch=epoch, shuffle=True
        )

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.steps_per_epoch * self.settings.max_epochs

    def collate(self, dataset: Dataset, indices: list[int]) -> tuple[GraphBatch, Labels]:
        """These frames in the run's type and on its device."""
        settings = self.settings
        return dataset.batch(indices, dtype=settings.torch_dtype, device=settings.device)

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with its beginning, JSON-able."""
        described = {
            "model": getattr(self.model, "spec", self.model),
            "likelihood": self.likelihood_at(0),
        }
        return {
            "settings": self.settings.binding(),
            "train_data": _data_identity(self.train),
            "valid_data": _data_identity(self.valid),
            **{key: repr(v) for key, v in described.items() if dataclasses.is_dataclass(v)},
        }


def _data_identity(dataset: Dataset) -> dict[str, Any]:
    """Frames, in their order, and what was made of them."""
    frames = hashlib.sha256()
    for frame in dataset.frames:
        frames.update(f"{frame_fingerprint(frame)} {frame.weight};".encode())
    return {
        "frames": frames.hexdigest(),
        "elements": list(dataset.elements),
        "cutoff": dataset.cutoff,
        "references": {str(number): value for number, value in dataset.references.items()},
    }
