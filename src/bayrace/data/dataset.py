"""A data set whose graphs are built once, and the order its epochs visit them in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.data.batch import Graph, batch_order, build_graph, collate
from bayrace.data.frame import DataError, Frame, Integers
from bayrace.data.neighbours import edge_lengths
from bayrace.data.reference import mean_energies, reference_energy
from bayrace.data.split import frame_fingerprint

_ENOUGH = 3  # frames that make a shortest distance known


class Dataset:
    """Frames with their graphs and labels, ready to be batched; nothing is rebuilt per epoch."""

    frames: tuple[Frame, ...]
    graphs: tuple[Graph, ...]
    elements: tuple[int, ...]  # atomic numbers, ascending
    cutoff: float  # Å
    references: dict[int, float]  # eV by atomic number
    edges: Integers  # (len,) directed edges of each frame

    def __init__(
        self,
        frames: Sequence[Frame],
        *,
        elements: tuple[int, ...],
        cutoff: float,
        references: Mapping[int, float],
        graphs: Sequence[Graph] | None = None,
    ) -> None:
        """Build the graphs of some frames, unless they are given."""
        self.frames = tuple(frames)
        self.elements = tuple(elements)
        self.cutoff = cutoff
        self.references = dict(references)
        self.graphs = (
            tuple(
                build_graph(frame, elements=self.elements, cutoff=cutoff) for frame in self.frames
            )
            if graphs is None
            else tuple(graphs)
        )
        self.edges = np.array([graph.reverse.shape[0] for graph in self.graphs], dtype=np.int64)
        self._energy = _column([_relative_energy(frame, references) for frame in self.frames])
        self._stress = _rows([_stress(frame) for frame in self.frames])
        self._weight = _column([frame.weight for frame in self.frames])
        self._forces = [_forces(frame) for frame in self.frames]

    def __len__(self) -> int:
        return len(self.frames)

    def batch(
        self,
        indices: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> tuple[GraphBatch, Labels]:
        """Join these frames; energies have the references subtracted in float64 before the cast."""
        graphs = [self.graphs[index] for index in indices]
        batch = collate(graphs, elements_count=len(self.elements), dtype=dtype)
        chosen = torch.tensor(indices, dtype=torch.int64)
        forces = torch.cat([self._forces[index] for index in indices])
        labels = Labels(
            energy=self._energy[chosen].to(dtype),
            forces=forces[batch_order(batch)].to(dtype),
            stress=self._stress[chosen].to(dtype),
            weight=self._weight[chosen].to(dtype),
        )
        if torch.device(device).type == "cpu":
            return batch, labels
        return batch.to(device=device), labels.to(device=device)

    def feed(
        self,
        requests: Iterable[Sequence[int]],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[GraphBatch, Labels] | None]:
        """The batch of each request, made when it is asked for; None for an empty one."""
        for indices in requests:
            yield self.batch(indices, dtype=dtype, device=device) if len(indices) else None

    def costs(self, indices: Sequence[int]) -> list[int]:
        """What each of these frames costs, in edges."""
        counts: list[int] = self.edges[list(indices)].tolist()
        return counts

    def origin(self, index: int) -> str:
        """Where a frame came from, as messages show it."""
        return self.frames[index].origin

    def frames_hash(self) -> str:
        """Hash of the frames and their weights, in their order (sha256, hex)."""
        digest = hashlib.sha256()
        for frame in self.frames:
            digest.update(f"{frame_fingerprint(frame)} {frame.weight};".encode())
        return digest.hexdigest()

    def with_references(self, references: Mapping[int, float]) -> Dataset:
        """The same frames and graphs with energies counted from other references, eV."""
        other = copy(self)
        other.references = dict(references)
        other._energy = _column([_relative_energy(frame, references) for frame in self.frames])
        return other

    def mean_neighbours(self) -> float:
        """Edges per atom over the whole set; 1 where there are no edges at all."""
        atoms = sum(len(frame.numbers) for frame in self.frames)
        edges = int(self.edges.sum())
        return edges / atoms if edges else 1.0

    def shortest_distances(self) -> tuple[tuple[float, ...], ...]:
        """Å, (Z, Z): third smallest, since one may be odd, of the shortest in each frame.

        0 for elements that are within the cutoff of each other in fewer than three frames.
        """
        kinds = len(self.elements)
        rows = np.full((max(len(self), _ENOUGH), kinds * kinds), np.inf)
        for row, frame, graph in zip(rows, self.frames, self.graphs, strict=False):
            edges, shifts = graph.edges.numpy(), graph.shifts.numpy()
            lengths = edge_lengths(frame.positions, frame.cell, frame.pbc, edges, shifts)
            first, second = np.searchsorted(self.elements, frame.numbers[edges])
            np.minimum.at(row, first * kinds + second, lengths)
        found = np.sort(rows, axis=0)[_ENOUGH - 1].reshape(kinds, kinds)
        known = np.where(np.isfinite(found), found, 0.0)
        return tuple(tuple(row) for row in known.tolist())

    def stressed_volume(self) -> float:
        """Mean volume of an atom in structures whose stress is known, Å³; 0 where none is."""
        known = (~self._stress.isnan().any(-1)).nonzero().flatten().tolist()
        if not known:
            return 0.0
        atoms = [len(self.frames[index].numbers) for index in known]
        volumes = [float(self.graphs[index].volume) for index in known]
        return sum(volumes) / sum(atoms)

    def force_rms(self) -> float:
        """Root mean square of all labelled force components, eV/Å; 1 where there are none."""
        labelled = [frame.forces for frame in self.frames if frame.forces is not None]
        squares = sum(float(np.sum(forces**2)) for forces in labelled)
        components = sum(forces.size for forces in labelled)
        return float(np.sqrt(squares / components)) if squares > 0 else 1.0

    def atomic_shift(self) -> tuple[float, ...]:
        """Mean energy per element beyond the references, eV, in the order of the elements."""
        return mean_energies(self.frames, elements=self.elements, references=self.references)


def edge_batches(
    data: Dataset, *, like: Params, edges: int, chosen: Sequence[int] | None = None
) -> Iterator[tuple[GraphBatch, Labels]]:
    """Consecutive frames in the type of some weights, together while they have so few edges.

    With 0 each frame is alone. `chosen` are the indices of some frames; None takes all.
    """
    first = next(iter(like.values()))
    group: list[int] = []
    for index in range(len(data)) if chosen is None else chosen:
        if group and (not edges or int(data.edges[[*group, index]].sum()) > edges):
            yield data.batch(group, dtype=first.dtype, device=first.device)
            group = []
        group.append(index)
    if group:
        yield data.batch(group, dtype=first.dtype, device=first.device)


def epoch_batches(
    count: int, batch_size: int, *, seed: int, epoch: int, shuffle: bool
) -> list[list[int]]:
    """Frame indices of each batch; depends on (seed, epoch) only, so that resuming is exact."""
    if batch_size < 1:
        raise DataError(f"batch_size={batch_size}: use at least 1")
    order = np.random.default_rng([seed, epoch]).permutation(count) if shuffle else range(count)
    places = [int(place) for place in order]
    return [places[start : start + batch_size] for start in range(0, count, batch_size)]


def equal_batches(edges: Integers, batches: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Shuffled frame indices in `batches` groups of about the same number of edges.

    A group is empty, and left out, only where one frame is larger than a share.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(edges))
    work = edges[order] + 1  # an isolated atom is work too
    middle = np.cumsum(work) - work / 2
    group = np.floor(middle / work.sum() * batches).astype(np.int64)
    return [order[group == k].tolist() for k in range(batches) if (group == k).any()]


def _relative_energy(frame: Frame, references: Mapping[int, float]) -> float:
    reference = reference_energy(frame.numbers, references)
    return float("nan") if frame.energy is None else frame.energy - reference


def _forces(frame: Frame) -> Tensor:
    if frame.forces is None:
        return torch.full((len(frame.numbers), 3), float("nan"), dtype=torch.float64)
    return torch.from_numpy(frame.forces)


def _stress(frame: Frame) -> Tensor:
    if frame.stress is None or not frame.pbc.all():
        return torch.full((6,), float("nan"), dtype=torch.float64)
    return torch.from_numpy(frame.stress)


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _rows(values: list[Tensor]) -> Tensor:
    return torch.stack(values) if values else torch.zeros(0, 6, dtype=torch.float64)
