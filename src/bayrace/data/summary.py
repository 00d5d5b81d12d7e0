"""What a set of files holds: counts, ranges, outliers and duplicates, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ase.data import chemical_symbols

from bayrace.data.bonds import shortest_distances
from bayrace.data.frame import Floats, Frame, elements_of
from bayrace.data.reference import fit_references, reference_energy
from bayrace.data.split import geometry_fingerprint

ENERGY_SCORE = 10.0  # robust z beyond which an energy per atom is an outlier
ENERGY_FLOOR = 1e-3  # eV/atom; spreads below this are not worth a flag
FORCE_LIMIT = 50.0  # eV/Å


@dataclass(frozen=True)
class Range:
    """Smallest, mean and largest of some values."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class SplitReport:
    """What one set (train, valid, test) holds."""

    name: str
    frames: int
    atoms: int
    elements: dict[str, int]  # atoms of each element, by symbol
    atoms_per_frame: Range | None
    energy_per_atom: Range | None  # eV, as in the files
    force: Range | None  # norms of atomic forces, eV/Å
    force_rms: float | None  # of components, eV/Å
    stress: Range | None  # components, eV/Å³
    shortest: dict[str, float]  # Å, of each pair of elements that come close: "H-C"
    periodic: dict[str, int]  # frames by pbc: "TTT", "FFF", "TTF", ...
    config_types: dict[str, int]  # frames of each
    missing: dict[str, int]  # frames without energy, forces, stress


@dataclass(frozen=True)
class Outlier:
    """A frame whose label stands far from the others."""

    split: str
    frame: str
    quantity: str  # "energy" or "force"
    value: float  # eV/atom beyond the median of the residuals, or eV/Å
    remark: str
    score: float  # robust deviations from the median, or times the median force


@dataclass(frozen=True)
class Duplicate:
    """Two frames of the same geometry."""

    first_split: str
    first: str
    second_split: str
    second: str

    @property
    def across(self) -> bool:
        """Whether the two are in different splits, which spoils the evaluation."""
        return self.first_split != self.second_split


@dataclass(frozen=True)
class DataReport:
    """The report of all splits; `dataclasses.asdict` makes it JSON."""

    splits: tuple[SplitReport, ...]
    outliers: tuple[Outlier, ...]
    duplicates: tuple[Duplicate, ...]


def report(splits: Mapping[str, Sequence[Frame]]) -> DataReport:
    """Describe the splits; energies are judged against references fitted on the first of them."""
    return DataReport(
        splits=tuple(_describe(name, frames) for name, frames in splits.items()),
        outliers=tuple(outliers(splits)),
        duplicates=tuple(duplicates(splits)),
    )


def outliers(splits: Mapping[str, Sequence[Frame]]) -> list[Outlier]:
    """Frames whose energy or forces stand far from the others; atoms alone are no such frames."""
    together = {name: several(frames) for name, frames in splits.items()}
    return _energy_outliers(together) + _force_outliers(together)


def several(frames: Sequence[Frame]) -> list[Frame]:
    """Frames that are no single atoms."""
    return [frame for frame in frames if len(frame.numbers) > 1 or frame.pbc.any()]


def duplicates(splits: Mapping[str, Sequence[Frame]]) -> list[Duplicate]:
    """Frames of the same geometry as an earlier one."""
    seen: dict[str, tuple[str, str]] = {}
    found: list[Duplicate] = []
    for name, frames in splits.items():
        for frame in frames:
            key = geometry_fingerprint(frame)
            if key in seen:
                found.append(Duplicate(*seen[key], name, frame.origin))
            else:
                seen[key] = (name, frame.origin)
    return found


def _describe(name: str, frames: Sequence[Frame]) -> SplitReport:
    atoms = Counter(int(number) for frame in frames for number in frame.numbers)
    forces = _joined([frame.forces for frame in frames if frame.forces is not None])
    stresses = _joined([frame.stress for frame in frames if frame.stress is not None])
    norms = np.linalg.norm(forces.reshape(-1, 3), axis=1)
    per_atom = [frame.energy / len(frame.numbers) for frame in frames if frame.energy is not None]
    return SplitReport(
        name=name,
        frames=len(frames),
        atoms=sum(atoms.values()),
        elements={chemical_symbols[number]: atoms[number] for number in sorted(atoms)},
        atoms_per_frame=_range([len(frame.numbers) for frame in frames]),
        energy_per_atom=_range(per_atom),
        force=_range(norms),
        force_rms=float(np.sqrt(np.mean(forces**2))) if forces.size else None,
        stress=_range(stresses),
        shortest=shortest_distances(frames),
        periodic=_count("".join("FT"[int(flag)] for flag in frame.pbc) for frame in frames),
        config_types=_count(frame.config_type for frame in frames),
        missing={
            label: sum(getattr(frame, label) is None for frame in frames)
            for label in ("energy", "forces", "stress")
        },
    )


def _energy_outliers(splits: Mapping[str, Sequence[Frame]]) -> list[Outlier]:
    found: list[Outlier] = []
    references: dict[int, float] = {}
    for name, frames in splits.items():
        labelled = [frame for frame in frames if frame.energy is not None]
        if not set(elements_of(labelled)) <= set(references):
            references = _robust_references(labelled)
        found += _beyond(name, labelled, references)
    return found


def _robust_references(frames: Sequence[Frame], *, rounds: int = 3) -> dict[int, float]:
    """References fitted again without the outliers they would otherwise bend towards."""
    references = fit_references(frames, given=None)
    for _ in range(rounds):
        scores = _scores(_residuals(frames, references))
        kept = [frame for frame, score in zip(frames, scores, strict=True) if score < ENERGY_SCORE]
        if len(elements_of(kept)) == len(references):
            references = fit_references(kept, given=None)
    return references


def _beyond(name: str, frames: Sequence[Frame], references: dict[int, float]) -> list[Outlier]:
    residuals = _residuals(frames, references)
    scores = _scores(residuals)
    return [
        Outlier(
            split=name,
            frame=frames[place].origin,
            quantity="energy",
            value=float(residuals[place] - np.median(residuals)),
            remark=f"energy per atom {scores[place]:.0f} robust deviations from the median",
            score=float(scores[place]),
        )
        for place in np.flatnonzero(scores > ENERGY_SCORE).tolist()
    ]


def _residuals(frames: Sequence[Frame], references: Mapping[int, float]) -> Floats:
    values = [
        (frame.energy - reference_energy(frame.numbers, references)) / len(frame.numbers)
        for frame in frames
        if frame.energy is not None
    ]
    return np.array(values, dtype=np.float64)


def _scores(values: Floats) -> Floats:
    """Robust z: distance to the median in units of 1.4826 median absolute deviations."""
    if values.size == 0:
        return values
    distances = np.abs(values - np.median(values))
    spread = max(1.4826 * float(np.median(distances)), ENERGY_FLOOR)
    return np.asarray(distances / spread)


def _force_outliers(splits: Mapping[str, Sequence[Frame]]) -> list[Outlier]:
    found: list[Outlier] = []
    for name, frames in splits.items():
        known = [np.linalg.norm(each.forces, axis=1) for each in frames if each.forces is not None]
        usual = float(np.median(np.concatenate(known))) if known else 0.0
        for frame in frames:
            norms = np.zeros(1) if frame.forces is None else np.linalg.norm(frame.forces, axis=1)
            if norms.max() > FORCE_LIMIT:
                atom = int(np.argmax(norms))
                remark = f"force on atom {atom} ({chemical_symbols[frame.numbers[atom]]})"
                value = float(norms[atom])
                score = value / max(usual, 1e-3)
                found.append(Outlier(name, frame.origin, "force", value, remark, score))
    return found


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.zeros(0)


def _range(values: Sequence[float] | Floats) -> Range | None:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return None
    return Range(float(array.min()), float(array.mean()), float(array.max()))


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
