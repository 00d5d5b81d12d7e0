"""A training set that stays on disk: batches are made as they are needed, by other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.data.dataset import Dataset
from bayrace.data.feed import Feed, Pieces
from bayrace.data.feed_process import Builder
from bayrace.data.frame import Integers
from bayrace.data.split import frame_fingerprint
from bayrace.data.store import Store


class DiskDataset:
    """What a training asks of a `Dataset`, for structures of which only a sample is in memory."""

    def __init__(
        self, store: Store, places: Integers, sample: Dataset, *, workers: int, dtype: str
    ) -> None:
        self.store, self.places, self.sample = store, places, sample
        self.elements, self.cutoff = sample.elements, sample.cutoff
        self.references: Mapping[int, float] = sample.references
        self._job: dict[str, Any] = {
            "paths": store.paths,
            "keys": asdict(store.keys),
            "config_weights": store.config_weights,
            "elements": list(self.elements),
            "cutoff": self.cutoff,
            "references": {str(number): energy for number, energy in self.references.items()},
            "dtype": dtype,
        }
        self._dtype = torch.float64 if dtype == "float64" else torch.float32
        self._feed = Feed(self._job, workers=workers)
        self._builder: Builder | None = None

    def __len__(self) -> int:
        return len(self.places)

    @property
    def waited(self) -> float:
        """Seconds in which the training had to wait for structures."""
        return self._feed.waited

    def costs(self, indices: Sequence[int]) -> list[int]:
        """Nobody knows before they are read; all are taken for alike."""
        return [1] * len(indices)

    def origin(self, index: int) -> str:
        """Where a structure is, as messages show it."""
        return self.store.origin(int(self.places[index]))

    def batch(
        self, indices: Sequence[int], *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> tuple[GraphBatch, Labels]:
        """These structures, read now and by this process."""
        assert dtype == self._dtype, f"the data set was made for {self._dtype}"
        self._builder = self._builder or Builder(self._job)
        batch, labels = self._builder.batch(self.places[list(indices)].tolist())
        return batch.to(device=device), labels.to(device=device)

    def feed(
        self,
        requests: Iterable[Sequence[int]],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Iterator[Pieces | None]:
        """The batch of each request, made ahead; None for an empty one."""
        assert dtype == self._dtype, f"the data set was made for {self._dtype}"
        places = (self.places[list(indices)].tolist() for indices in requests)
        for made in self._feed.batches(places):
            if made is None or torch.device(device).type == "cpu":
                yield made
            else:
                yield made[0].to(device=device), made[1].to(device=device)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have the processes that read ahead while a training goes on."""
        self._feed.start()
        try:
            yield
        finally:
            self._feed.close()

    def frames_hash(self) -> str:
        """Tells whether the data are the same: how many, which of them, and what the sample is."""
        digest = hashlib.sha256(f"{len(self.store)};".encode())
        digest.update(np.ascontiguousarray(self.places).tobytes())
        for frame in self.sample.frames:
            digest.update(f"{frame_fingerprint(frame)} {frame.weight};".encode())
        return digest.hexdigest()
