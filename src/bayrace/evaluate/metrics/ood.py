"""Telling known structures from unknown ones by one number each: scores, AUROC and AUPR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

NOVELTY = "novelty"
"""The score that is told for whole structures, beside those made of σ."""


@dataclass(frozen=True)
class Detection:
    """How well a score tells `unknown` structures from `known` ones."""

    known: int
    unknown: int
    auroc: float  # 1 is perfect, ½ a coin
    aupr: float  # 1 is perfect, unknown / (known + unknown) a coin

    def to_json(self) -> dict[str, float | int]:
        """A JSON-able mapping."""
        return dict(vars(self))


def structure_scores(
    atoms: NDArray[np.int64],
    energy: Mapping[str, Array],
    forces: Mapping[str, Array],
    *,
    extensive: bool = True,
) -> dict[str, Array]:
    """Scores (S,) of S structures from their σ, by name.

    `energy` holds σ of the energy (S,), `forces` σ of the components (N, 3), each by its kind
    ("total", "epistemic"). The energy's is divided by the root of the number of atoms, as the σ of
    independent atoms grows with it; that of a target that is not `extensive` is not. A force has
    the σ √(tr Σ / 3), which rotations do not change.
    """
    first = np.concatenate([[0], np.cumsum(atoms)[:-1]])
    sizes = np.sqrt(atoms) if extensive else np.ones(len(atoms))
    scores = {f"energy_{kind}": std / sizes for kind, std in energy.items()}
    for kind, std in forces.items():
        each = np.sqrt(np.mean(std**2, axis=1))
        scores[f"forces_mean_{kind}"] = np.add.reduceat(each, first) / atoms
        scores[f"forces_max_{kind}"] = np.maximum.reduceat(each, first)
    return scores


def auroc(known: Array, unknown: Array) -> float:
    """Chance that an unknown structure scores higher than a known one; ties count half."""
    _check(known, unknown)
    ranks = stats.rankdata(np.concatenate([known, unknown]))
    above = float(ranks[known.size :].sum()) - unknown.size * (unknown.size + 1) / 2
    return above / (known.size * unknown.size)


def aupr(known: Array, unknown: Array) -> float:
    """Area under the precision-recall curve with the unknown as positives: average precision.

    Without any skill it is the fraction of unknown structures.
    """
    _check(known, unknown)
    values, place = np.unique(np.concatenate([known, unknown]), return_inverse=True)
    positive = np.bincount(place[known.size :], minlength=values.size)[::-1]
    everything = np.bincount(place, minlength=values.size)[::-1]
    precision = np.cumsum(positive) / np.cumsum(everything)
    return float(np.sum(precision * positive) / unknown.size)


def detections(
    known: Mapping[str, Array], unknown: Mapping[str, Array], *, certain: int = 0
) -> dict[str, Detection | None]:
    """Judge every score of two sets; None for one that is 0 everywhere, or nan somewhere.

    So many more unknown structures are `certain`: something else than the score tells them from
    all others, an element that the potential does not know. Their score is infinite.
    """
    found: dict[str, Detection | None] = {}
    for name, score in known.items():
        both = np.concatenate([score, unknown[name]])
        usable = both.any() and not np.isnan(both).any()
        pair = (score, np.concatenate([unknown[name], np.full(certain, np.inf)]))
        sizes = (score.size, pair[1].size)
        found[name] = Detection(*sizes, auroc(*pair), aupr(*pair)) if usable else None
    return found


def _check(known: Array, unknown: Array) -> None:
    for name, scores in (("known", known), ("unknown", unknown)):
        if scores.size == 0:
            raise ValueError(f"no {name} structures; give at least one of each")
        if np.isnan(scores).any():
            raise ValueError(f"{int(np.isnan(scores).sum())} scores of {name} structures are nan")
