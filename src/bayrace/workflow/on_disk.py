"""Training structures that stay on disk: which they are, and the sample of them that is looked at.

Statistics, references, checks, distances, the noise heads and the posterior come from the sample,
which is in memory; the training itself has all of them. So neither the memory nor the time before
the first step grows with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayrace.config import Config, ConfigError
from bayrace.config.build import label_keys, split_seed
from bayrace.data.frame import Frame, Integers
from bayrace.data.paths import expand
from bayrace.data.reference import atomic_number
from bayrace.data.store import SUFFIXES, Store
from bayrace.posterior.method import PosteriorMethod

MANY = 50_000
"""Structures that stay on disk with `data.keep: auto`."""

MOST_VALID = 2000
"""Structures that a fraction of the data on disk is at most."""

_STREAM = 1  # apart from other uses of the seed


@dataclass(frozen=True, eq=False)
class OnDisk:
    """Training structures in files."""

    store: Store
    places: Integers  # of the training structures in the store, ascending


@dataclass(frozen=True, eq=False)
class DiskParts:
    """What is in memory of them."""

    disk: OnDisk
    sample: list[Frame]
    valid: list[Frame] | None  # None: they have files of their own


def open_store(config: Config) -> Store | None:
    """The training data, where they are to stay on disk."""
    data = config.data
    if data.keep == "memory":
        return None
    if data.keep == "auto":
        files = [path for path, _ in expand(data.train)]
        if not all(path.suffix in SUFFIXES for path in files):
            return None
    keys = label_keys(data, config.target)
    store = Store(list(data.train), keys=keys, config_weights=data.config_weights)
    return store if data.keep == "disk" or len(store) > MANY else None


def disk_parts(config: Config, store: Store) -> DiskParts:
    """Draw validation structures, if they have no files, and the sample."""
    data = config.data
    seed = split_seed(config)
    held, valid = np.zeros(len(store), dtype=bool), None
    if not isinstance(data.valid, tuple):
        count = _valid_count(data.valid, len(store))
        held[np.random.default_rng(seed).permutation(len(store))[:count]] = True
        valid = [store.frame(int(place)) for place in np.flatnonzero(held)]
    places = np.flatnonzero(~held)
    random = np.random.default_rng([seed, _STREAM])
    drawn = random.choice(len(places), min(data.sample, len(places)), replace=False)
    sample = [store.frame(int(place)) for place in places[np.sort(drawn)]]
    return DiskParts(OnDisk(store, places), sample, valid)


def with_given(references: Mapping[int, float], config: Config) -> dict[int, float]:
    """References of the sample's elements, and those that are given for others."""
    given = config.data.references
    others = {} if isinstance(given, str) else {atomic_number(k): v for k, v in given.items()}
    return dict(sorted({**others, **references}.items()))


def check_disk(config: Config) -> None:
    """Refuse what needs all structures in memory, before anything is written."""
    method: PosteriorMethod = config.posterior.method
    if config.train.edge_budget is not None:
        raise ConfigError(
            f"train.edge_budget: {config.train.edge_budget} with training data on disk, whose "
            "edges are not known before they are read; use train.batch_size, or data.keep=memory"
        )
    if method.trains in ("itself", "on"):
        raise ConfigError(
            f"posterior: {method.name} with training data on disk: it trains on the structures in "
            "memory; use distance, llpr, laplace or ensemble, or data.keep=memory"
        )


def _valid_count(valid: int | float, total: int) -> int:
    fraction = isinstance(valid, float) and 0 < valid < 1
    count = min(max(1, round(valid * total)), MOST_VALID) if fraction else int(valid)
    if not 0 < count < total:
        raise ConfigError(
            f"data.valid: {valid} of {total} structures leaves nothing to train on, or nothing to "
            "validate with; give a fraction, or a number below that"
        )
    return count


def described(disk: OnDisk, sample: int) -> str:
    """A line on where the data are."""
    files = ", ".join(str(Path(path)) for path in disk.store.paths)
    return (
        f"on disk ({files}); statistics, references, checks, distances, noise heads and posterior "
        f"from {sample} of them"
    )
