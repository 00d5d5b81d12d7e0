"""Reference energies per element: isolated atoms where complete, else least squares, float64."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from ase.data import atomic_numbers

from bayrace.data.frame import DataError, Floats, Frame, Integers, elements_of, symbols_of

logger = logging.getLogger(__name__)


def fit_references(
    frames: Sequence[Frame], *, given: Mapping[int, float] | Mapping[str, float] | None
) -> dict[int, float]:
    """Return the reference energy, eV, of each element of the TRAINING frames.

    `given` (isolated atoms by atomic number or symbol) is used when it has every element; otherwise
    total energies are fitted to the composition by minimum-norm least squares.
    """
    elements = elements_of(frames)
    known = {atomic_number(element): float(energy) for element, energy in (given or {}).items()}
    missing = [element for element in elements if element not in known]
    if not missing:
        return {element: known[element] for element in elements}
    if known:
        logger.warning(
            "reference energies lack %s; fitting all of them to the training energies instead",
            symbols_of(missing),
        )
    labelled = [frame for frame in frames if frame.energy is not None]
    energies = np.array([frame.energy for frame in labelled], dtype=np.float64)
    return dict(zip(elements, _least_squares(labelled, elements, energies), strict=True))


def reference_energy(numbers: Integers, references: Mapping[int, float]) -> float:
    """Sum of the references of these atoms, eV."""
    present, counts = np.unique(numbers, return_counts=True)
    missing = [int(number) for number in present if int(number) not in references]
    if missing:
        raise DataError(
            f"no reference energy of {symbols_of(missing)}; known: {symbols_of(references)}; "
            f"train with data of this element"
        )
    energies = [references[int(number)] for number in present]
    return float(np.dot(np.array(energies, dtype=np.float64), counts))


def mean_energies(
    frames: Sequence[Frame], *, elements: tuple[int, ...], references: Mapping[int, float]
) -> tuple[float, ...]:
    """Minimum-norm least-squares energy per element beyond the references, eV, (Z,)."""
    labelled = [frame for frame in frames if frame.energy is not None]
    energies = np.array([frame.energy for frame in labelled], dtype=np.float64)
    known = [reference_energy(frame.numbers, references) for frame in labelled]
    return _least_squares(labelled, elements, energies - np.array(known, dtype=np.float64))


def element_energies(
    frames: Sequence[Frame], energies: Floats, *, elements: tuple[int, ...], mean: bool = False
) -> Floats:
    """Minimum-norm least-squares energy of each element, eV, from those of frames.

    (S, ...) gives (Z, ...); 0 where there are no frames. With `mean`, those of frames are averages
    over their atoms.
    """
    if not len(frames):
        return np.zeros((len(elements), *energies.shape[1:]), dtype=np.float64)
    counts = composition(frames, elements)
    counts = counts / counts.sum(1, keepdims=True) if mean else counts
    solution = np.linalg.lstsq(counts, energies, rcond=None)[0]
    return np.asarray(solution, dtype=np.float64)


def composition(frames: Sequence[Frame], elements: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Atoms of each element in each frame, (S, Z)."""
    counts = [[np.count_nonzero(frame.numbers == z) for z in elements] for frame in frames]
    return np.array(counts, dtype=np.float64).reshape(len(frames), len(elements))


def _least_squares(
    frames: Sequence[Frame], elements: tuple[int, ...], energies: Floats
) -> tuple[float, ...]:
    solution = element_energies(frames, energies, elements=elements)
    return tuple(float(energy) for energy in solution)


def atomic_number(element: int | str) -> int:
    """Of a symbol, or of a number."""
    if isinstance(element, int):
        return element
    if element not in atomic_numbers:
        raise DataError(f"reference energy of {element!r}: no such element; use a symbol like 'C'")
    return int(atomic_numbers[element])
