"""Choose the structures of a pool that are worth labelling.

    from bayrace.select.select import select
    chosen = select(potential, frames, by="bald-ef", budget=20, seen=training_frames)
    [frames[index] for index in chosen.indices]

The pool is read once, a batch at a time; of each structure only its scores and a descriptor of its
geometry are kept. A structure is left out if the potential has learnt from it, or if it is nearly
the same as one of the training set or one that is chosen already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import DataError, Frame
from bayrace.potential.potential import Potential
from bayrace.select.acquire import Acquisition, AcquisitionError, acquisition
from bayrace.select.acquire.descriptors import nearest
from bayrace.select.acquire.interface import Array, Pick, Pool
from bayrace.select.scan import MixedError, Scan, Scanning, common_composition, scan

MIN_DISTANCE = {"distances": 0.02, "features": 0.2}
"""Structures nearer than this are the same: in Å, or in standard deviations of features."""
LEARNT = ("train", "valid", "calibration")
"""Parts of a potential's data that need no second label; a test set may be chosen from."""


@dataclass(frozen=True, eq=False)
class Selection:
    """k structures in the order they were chosen, out of a pool of P."""

    by: str
    indices: NDArray[np.int64]  # (k,) in the pool
    scores: Array  # (k,) what each was chosen for
    criteria: tuple[str, ...]  # (k,) the name of that number
    ranks: NDArray[np.int64]  # (k,) place of the score in the whole pool, from 1; 0: not ranked
    distances: Array  # (k,) to the nearest of training set and earlier choices; inf, nan: unknown
    descriptor: str  # what distances are between: "distances" Å, "features" σ, or "none"
    columns: Mapping[str, Array]  # (P,) all numbers of all structures
    pool: int  # P
    skipped: Mapping[str, int]  # structures left out, by reason

    @property
    def why(self) -> tuple[str, ...]:
        """A sentence for each choice."""
        unit = {"distances": " Å", "features": " σ"}.get(self.descriptor, "")
        sentences = []
        for score, name, rank, distance in zip(
            self.scores, self.criteria, self.ranks, self.distances, strict=True
        ):
            place = f", number {rank} of {self.pool}" if rank else ""
            near = f"; {distance:.3g}{unit} from the nearest known" if np.isfinite(distance) else ""
            sentences.append(f"{name} {score:.4g}{place}{near}")
        return tuple(sentences)


def select(
    potential: Potential,
    frames: Iterable[Frame],
    *,
    by: str | Acquisition,
    budget: int,
    seen: Sequence[Frame] = (),
    seed: int = 0,
    min_distance: float | None = None,
    scanning: Scanning | None = None,
) -> Selection:
    """Choose up to `budget` of the frames by an acquisition or its name, see `select.acquire`.

    `seen` are the training frames, or any that are as good as labelled. `min_distance` is the least
    distance between a chosen frame and any known one (default `MIN_DISTANCE`; 0: only identical
    ones are left out). Fewer are chosen where no more are left. An iterator of frames cannot be
    read twice, so it must be of one composition or of several from the beginning; lists have no
    such limit. `scanning` says how the pool is gone through.
    """
    chooser = acquisition(by)
    if budget < 1:
        raise AcquisitionError(f"budget={budget}: choose at least 1 structure")
    found = _scanned(potential, frames, chooser=chooser, seen=seen, how=scanning or Scanning())
    pool, skipped, least = _prepared(found, potential, min_distance)
    picks: list[Pick] = []
    gaps: list[float] = []
    distance = _known_distance(pool)
    before = int(pool.free.sum())
    for pick in islice(chooser.order(pool, seed=seed), budget):
        picks.append(pick)
        gaps.append(float(distance[pick.place]))
        distance = _take(pool, pick.place, distance, least)
    near = before - int(pool.free.sum()) - len(picks)
    return _selection(
        chooser.name, picks, gaps, found, pool, {**skipped, "like a chosen one": near}
    )


def _scanned(
    potential: Potential,
    frames: Iterable[Frame],
    *,
    chooser: Acquisition,
    seen: Sequence[Frame],
    how: Scanning,
) -> Scan:
    """What is kept of the pool; by features from the start if distances turn out not to do."""
    once = iter(frames)
    first = next(once, None)
    if first is None:
        raise DataError("no structures to choose from; give a pool of at least 1")
    look = partial(scan, potential, chooser=chooser, seen=seen, how=how)
    try:
        return look(chain([first], once), kind=common_composition([*seen, first]))
    except MixedError as mixed:
        if isinstance(frames, Iterator):
            raise AcquisitionError(
                f"{mixed}: another composition than the structures before, in a pool that can be "
                "read only once; give a list, or choose from each composition by itself"
            ) from None
        return look(frames, kind=None)


def _prepared(
    found: Scan, potential: Potential, min_distance: float | None
) -> tuple[Pool, dict[str, int], float]:
    """The pool without what must not be chosen, why so, and the least distance of choices."""
    pool, skipped = found.pool(), {}
    parts = [potential.frames[part] for part in LEARNT if part in potential.frames]
    learnt = np.isin(found.hashes, np.concatenate(parts)) if parts else np.zeros(len(pool), bool)
    _, places = np.unique(found.geometry, return_index=True)
    repeated = np.ones(len(pool), dtype=bool)
    repeated[places] = False
    least = MIN_DISTANCE.get(found.descriptor, 0.0) if min_distance is None else min_distance
    close = _known_distance(pool) <= least
    numbers = np.ones(len(pool), dtype=bool)
    for column in pool.columns.values():
        numbers &= np.isfinite(column)
    reasons = {
        "learnt from": learnt,
        "like a training structure": close,
        "repeated": repeated,
        "without a finite score": ~numbers,
    }
    for name, refused in reasons.items():
        skipped[name] = int((refused & pool.free).sum())
        pool.free[refused] = False
    columns = {name: np.where(numbers, values, 0.0) for name, values in pool.columns.items()}
    return replace(pool, columns=columns), skipped, least


def _known_distance(pool: Pool) -> Array:
    """Distance of each structure to the training set; inf where it is unknown."""
    if pool.descriptors is None or pool.known_descriptors is None:
        return np.full(len(pool), np.inf)
    return nearest(pool.descriptors, pool.known_descriptors)


def _take(pool: Pool, index: int, distance: Array, least: float) -> Array:
    """Mark a structure and its like as taken; distances to what is known now."""
    pool.free[index] = False
    if pool.descriptors is None:
        return distance
    taken = nearest(pool.descriptors, pool.descriptors[index : index + 1])
    pool.free[taken <= least] = False
    return np.minimum(distance, taken)


def _selection(
    by: str,
    picks: Sequence[Pick],
    gaps: Sequence[float],
    found: Scan,
    pool: Pool,
    skipped: Mapping[str, int],
) -> Selection:
    ranks = [
        1 + int((pool.columns[pick.by] > pick.score).sum()) if pick.by in pool.columns else 0
        for pick in picks
    ]
    return Selection(
        by=by,
        indices=np.array([pick.place for pick in picks], dtype=np.int64),
        scores=np.array([pick.score for pick in picks], dtype=np.float64),
        criteria=tuple(pick.by for pick in picks),
        ranks=np.array(ranks, dtype=np.int64),
        distances=np.array(gaps, dtype=np.float64),
        descriptor=found.descriptor,
        columns=pool.columns,
        pool=len(pool),
        skipped={name: count for name, count in skipped.items() if count},
    )
