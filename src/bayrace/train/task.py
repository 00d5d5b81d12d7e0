"""What is trained on what, and how to recognise it again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood, Model, RescaledStart
from bayrace.data.dataset import Dataset, epoch_batches, equal_batches
from bayrace.data.disk import DiskDataset
from bayrace.train.settings import TrainSettings

TrainingSet = Dataset | DiskDataset

_FIRST_LOOK = 20  # structures that initial parameters are scaled to


@dataclass(frozen=True, eq=False)
class Task:
    """The unchanging side of a run."""

    model: Model
    likelihood_at: Callable[[int], Likelihood]  # by epoch, from 0
    train: TrainingSet
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

        rehearsal = self.settings.rehearsal
        if rehearsal is not None and not rehearsal.known <= len(self.train):
            raise ValueError(f"{rehearsal}: the training set has {len(self.train)} frames")
        if self.steps_per_epoch == 0:
            raise ValueError("an epoch has no frames; rehearse at least one, or add new ones")

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        budget, rehearsal = self.settings.edge_budget, self.settings.rehearsal
        left_out = 0 if rehearsal is None else rehearsal.known - rehearsal.take
        count = len(self.train) - left_out
        if budget is None or isinstance(self.train, DiskDataset):
            return math.ceil(count / self.settings.batch_size)
        share = count / len(self.train)  # on average over the epochs
        wanted = math.ceil(share * int(self.train.edges.sum()) / budget)
        return min(max(wanted, 1), count)

    def order(self, epoch: int) -> Sequence[list[int]]:
        """Frames of each batch; depends on seed and epoch only, so that resuming is exact."""
        settings = self.settings
        drawn = self._drawn(epoch)
        if isinstance(self.train, DiskDataset):
            return LazyBatches(drawn, settings.batch_size, key=[settings.seed, epoch])
        if settings.edge_budget is not None:
            batches = equal_batches(
                self.train.edges[drawn], self.steps_per_epoch, seed=settings.seed, epoch=epoch
            )
        else:
            batches = epoch_batches(
                len(drawn), settings.batch_size, seed=settings.seed, epoch=epoch, shuffle=True
            )
        return [drawn[batch].tolist() for batch in batches]

    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        """The frames of an epoch, ascending."""
        rehearsal = self.settings.rehearsal
        places = np.arange(len(self.train))
        if rehearsal is None:
            return places
        random = np.random.default_rng([self.settings.seed, epoch, rehearsal.known])
        old = random.choice(rehearsal.known, rehearsal.take, replace=False)
        return np.concatenate([np.sort(old), places[rehearsal.known :]])

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.steps_per_epoch * self.settings.max_epochs

    def collate(self, dataset: TrainingSet, indices: list[int]) -> tuple[GraphBatch, Labels]:
        """These frames in the run's type and on its device."""
        settings = self.settings
        return dataset.batch(indices, dtype=settings.torch_dtype, device=settings.device)

    def initial(self) -> Params:
        """The first parameters: drawn by the seed, fitted to some of the data where a model can."""
        settings, model = self.settings, self.model
        drawn = model.init(settings.seed, dtype=settings.torch_dtype, device=settings.device)
        if not isinstance(model, RescaledStart):
            return drawn
        step = max(1, len(self.train) // _FIRST_LOOK)
        batch, _ = self.collate(self.train, list(range(0, len(self.train), step))[:_FIRST_LOOK])
        return model.rescaled(drawn, batch)

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


class LazyBatches(Sequence[list[int]]):
    """The batches of `epoch_batches`, of which only the order of the frames is held."""

    def __init__(self, drawn: NDArray[np.int64], size: int, *, key: list[int]) -> None:
        self._order = drawn[np.random.default_rng(key).permutation(len(drawn))]
        self._size = size

    def __len__(self) -> int:
        return -(-len(self._order) // self._size)

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[list[int]]: ...
    def __getitem__(self, place: int | slice) -> list[int] | Sequence[list[int]]:
        if isinstance(place, slice):
            rest = copy(self)
            start, stop, _ = place.indices(len(self))  # steps are 1
            rest._order = self._order[start * self._size : stop * self._size]
            return rest
        if not 0 <= place < len(self):
            raise IndexError(place)
        found: list[int] = self._order[place * self._size : (place + 1) * self._size].tolist()
        return found


def _data_identity(dataset: TrainingSet) -> dict[str, Any]:
    """Frames, in their order, and what was made of them."""
    return {
        "frames": dataset.frames_hash(),
        "elements": list(dataset.elements),
        "cutoff": dataset.cutoff,
        "references": {str(number): value for number, value in dataset.references.items()},
    }
