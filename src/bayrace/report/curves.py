"""The curves of the report's figures, from plain arrays: chance, bins, alarms, histograms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from bayrace.evaluate.metrics.calibration import LEVELS

Array = NDArray[np.float64]


def sampling_band(count: int, *, confidence: float = 0.95) -> tuple[Array, Array]:
    """Where coverage of `count` independent, calibrated labels falls, level by level."""
    tail = (1 - confidence) / 2
    low, high = (np.asarray(stats.binom.ppf(p, count, LEVELS)) for p in (tail, 1 - tail))
    return low / count, high / count


def folded_normal(level: float) -> float:
    """The quantile of |z| of a standard normal z."""
    return float(special.ndtri((1 + level) / 2))


def binned_rmse(std: Array, error: Array, *, bins: int = 10) -> tuple[Array, Array]:
    """Root mean squares of σ and of the error in bins of σ of equal population."""
    parts = np.array_split(np.argsort(std), max(1, min(bins, std.size // 20)))
    parts = [part for part in parts if part.size]
    x = np.array([np.sqrt(np.mean(std[part] ** 2)) for part in parts])
    y = np.array([np.sqrt(np.mean(error[part] ** 2)) for part in parts])
    return x, y


def roc(known: Array, unknown: Array) -> tuple[Array, Array]:
    """False and true positive rates over all thresholds of a score, from (0, 0) to (1, 1).

    A positive is an unknown structure; ties are passed in one (slanted) step.
    """
    scores = np.concatenate([known, unknown])
    positive = np.concatenate([np.zeros(known.size, bool), np.ones(unknown.size, bool)])
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(scores)), scores.size - 1)  # of each run of ties
    true = np.concatenate([[0.0], np.cumsum(positive)[last] / unknown.size])
    false = np.concatenate([[0.0], np.cumsum(~positive)[last] / known.size])
    return false, true


def histogram(values: list[Array], *, bins: int = 36) -> tuple[Array, list[Array]]:
    """Edges, evenly spaced in the logarithm, that all positive values share, and the fractions."""
    joined = np.concatenate(values)
    joined = joined[joined > 0]
    low, high = np.log10(joined.min()) - 0.03, np.log10(joined.max()) + 0.03
    edges = np.logspace(low, high, bins + 1)
    return edges, [np.histogram(each, edges)[0] / max(each.size, 1) for each in values]


def thinned(count: int, most: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Indices, ascending, of at most so many of `count` things, chosen at random."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
