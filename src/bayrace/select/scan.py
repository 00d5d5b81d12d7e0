"""One pass over a pool of any length: what is kept of each structure to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayrace.core.prediction import Prediction
from bayrace.data.frame import Frame
from bayrace.data.split import frame_hashes, geometry_fingerprint
from bayrace.potential.cluster import OnCluster
from bayrace.potential.potential import Potential
from bayrace.select.acquire import Acquisition
from bayrace.select.acquire.descriptors import (
    composition,
    last_layer_features,
    measurable,
    sorted_distances,
    standardise,
)
from bayrace.select.acquire.interface import Array, Descriptors, OverAtoms, Pool
from bayrace.select.rows import Rows

_GROUP = 64  # structures that are looked at together where nothing is predicted


class MixedError(ValueError):
    """A structure of another composition where all were taken to be alike; says which."""


@dataclass(frozen=True, eq=False)
class Scan:
    """P structures of a pool and T that were seen before."""

    columns: dict[str, Array]  # (P,)
    hashes: NDArray[np.int64]  # (P,) of geometry and labels
    geometry: NDArray[np.int64]  # (P,) of the geometry
    features: Array | None  # (P, D), summed over atoms
    known_features: Array | None  # (T, D)
    descriptors: Descriptors | None  # (P, G)
    known_descriptors: Descriptors | None  # (T, G)
    descriptor: str  # "distances", "features", "none"

    def pool(self) -> Pool:
        """As acquisitions see it; everything is free."""
        return Pool(
            columns=self.columns,
            free=np.ones(len(self.hashes), dtype=bool),
            features=self.features,
            known_features=self.known_features,
            descriptors=self.descriptors,
            known_descriptors=self.known_descriptors,
        )


def common_composition(frames: Sequence[Frame]) -> bytes | None:
    """The composition of molecules that are all alike; None where they are not."""
    kind = composition(frames[0])
    alike = all(measurable(frame) and composition(frame) == kind for frame in frames)
    return kind if alike else None


@dataclass(frozen=True)
class Scanning:
    """How a pool is gone through."""

    over_atoms: OverAtoms = "mean"  # how numbers of atoms become one of their structure
    edges: int = 20_000  # neighbour pairs per batch
    progress: Callable[[int], None] | None = None  # hears of the structures done
    cluster: OnCluster | None = None  # whose workers look at the structures; None: we do


def scan(
    potential: Potential,
    frames: Iterable[Frame],
    *,
    chooser: Acquisition,
    seen: Sequence[Frame],
    kind: bytes | None,
    how: Scanning,
) -> Scan:
    """Look at every frame once.

    Frames are described by sorted distances if all have the composition `kind`, which is checked
    (`MixedError`), and by last-layer features if it is None.
    """
    wants_features = chooser.needs.features or kind is None
    look = partial(
        _look,
        chooser=chooser,
        kind=kind,
        wants_features=wants_features,
        over_atoms=how.over_atoms,
        edges=how.edges,
    )
    found = _Found({}, Rows(np.int64), Rows(np.int64), Rows(np.float64), Rows(np.float32))
    atoms, done = Rows(np.float64), 0
    for piece in _pieces(potential, frames, look, how.cluster):
        for name, value in piece.measured.items():
            found.numbers.setdefault(name, Rows(np.float64)).add(value)
        found.hashes.add(piece.hashes)
        found.geometry.add(piece.geometry)
        found.features.add(piece.described.features)
        found.distances.add(piece.described.distances)
        atoms.add(piece.described.atoms)
        done += len(piece.hashes)
        if how.progress is not None:
            how.progress(done)
    known = _described(potential, seen, kind=kind, wants_features=wants_features) if seen else None
    return _joined(found, atoms.array(), known, kind=kind)


class _Described(NamedTuple):
    features: Array | None  # (S, D), summed over atoms
    distances: Array | None  # (S, G)
    atoms: Array  # (S,)


class _Piece(NamedTuple):
    """What was found of S consecutive structures."""

    measured: dict[str, Array]  # (S,) by name
    hashes: NDArray[np.int64]  # (S,)
    geometry: NDArray[np.int64]  # (S,)
    described: _Described


class _Found(NamedTuple):
    """What grows with the pool."""

    numbers: dict[str, Rows]
    hashes: Rows
    geometry: Rows
    features: Rows
    distances: Rows  # in half the bytes: 1e-7 Å is less than any two structures differ by


Look = Callable[[Potential, Iterable[Frame]], Iterator[_Piece]]


def _pieces(
    potential: Potential, frames: Iterable[Frame], look: Look, cluster: OnCluster | None
) -> Iterator[_Piece]:
    if cluster is None:
        yield from look(potential, frames)
        return
    for _, pieces in cluster.each(partial(_listed, look), frames):
        yield from pieces


def _listed(look: Look, potential: Potential, frames: list[Frame]) -> list[_Piece]:
    return list(look(potential, frames))


def _look(
    potential: Potential,
    frames: Iterable[Frame],
    *,
    chooser: Acquisition,
    kind: bytes | None,
    wants_features: bool,
    over_atoms: OverAtoms,
    edges: int,
) -> Iterator[_Piece]:
    """Look at frames, some consecutive ones at a time."""
    for group, prediction in _groups(potential, frames, chooser, edges):
        measured = {} if prediction is None else chooser.measure(prediction, over_atoms=over_atoms)
        yield _Piece(
            {name: value.double().numpy(force=True) for name, value in measured.items()},
            frame_hashes(group),
            _geometry(group),
            _described(potential, group, kind=kind, wants_features=wants_features),
        )


def _groups(
    potential: Potential, frames: Iterable[Frame], chooser: Acquisition, edges: int
) -> Iterator[tuple[list[Frame], Prediction | None]]:
    """Consecutive frames, with predictions if the acquisition needs any."""
    if chooser.needs.prediction == "none":
        stream = iter(frames)
        while group := list(islice(stream, _GROUP)):
            yield group, None
        return
    yield from potential.predict_frames(
        frames, uncertainty=chooser.needs.prediction, edge_budget=edges
    )


def _described(
    potential: Potential, frames: Sequence[Frame], *, kind: bytes | None, wants_features: bool
) -> _Described:
    features = last_layer_features(potential, frames) if wants_features else None
    atoms = np.array([len(frame.numbers) for frame in frames], dtype=np.float64)
    if kind is None:
        return _Described(features, None, atoms)
    for frame in frames:
        if not measurable(frame) or composition(frame) != kind:
            raise MixedError(frame.origin)
    return _Described(features, np.stack([sorted_distances(frame) for frame in frames]), atoms)


def _geometry(frames: Sequence[Frame]) -> NDArray[np.int64]:
    values = [int(geometry_fingerprint(frame)[:16], 16) for frame in frames]
    return np.array(values, dtype=np.uint64).view(np.int64)


def _joined(
    found: _Found, sizes: Array | None, known: _Described | None, *, kind: bytes | None
) -> Scan:
    features = found.features.array()
    inside = None if known is None else known.features
    points = others = None
    if kind is not None:
        points = found.distances.array()
        others = None if known is None else known.distances
    elif features is not None and sizes is not None:
        per_atom = None if known is None or inside is None else inside / known.atoms[:, None]
        points, others = standardise(features / sizes[:, None], per_atom)
    return Scan(
        columns={name: _whole(rows) for name, rows in found.numbers.items()},
        hashes=_whole(found.hashes),
        geometry=_whole(found.geometry),
        features=features,
        known_features=inside,
        descriptors=points,
        known_descriptors=None if others is None else others.astype(np.float32),
        descriptor="none" if points is None else "features" if kind is None else "distances",
    )


def _whole(rows: Rows) -> Any:
    found = rows.array()
    assert found is not None  # a pool has at least one structure
    return found
