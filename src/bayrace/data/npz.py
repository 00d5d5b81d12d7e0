"""rMD17 (Christensen 2020) npz files: one molecule, many geometries, kcal/mol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from ase.data import chemical_symbols

from bayrace.core.units import KCAL_PER_MOL
from bayrace.data.frame import DEFAULT_TYPE, DataError, Floats, Frame, Integers

Arrays = dict[str, npt.NDArray[np.generic]]
_KEYS = ("nuclear_charges", "coords", "energies", "forces")


def read_npz(path: Path, arrays: Arrays | None = None, *, weight: float = 1.0) -> list[Frame]:
    """Read nuclear_charges (n,), coords (F, n, 3) Å, energies (F,) and forces, to eV and eV/Å."""
    arrays = load_npz(path) if arrays is None else arrays
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no array {missing[0]!r}; present: {', '.join(sorted(arrays))}; "
            f"an rMD17 file has {', '.join(_KEYS)}; convert other layouts to extended XYZ"
        )
    numbers = _charges(path, arrays["nuclear_charges"])
    coords, energies, forces = (_real(path, key, arrays[key]) for key in _KEYS[1:])
    frames = coords.shape[0] if coords.ndim else 0
    _expect(path, "coords", coords, (frames, numbers.size, 3))
    _expect(path, "energies", energies.reshape(-1), (frames,))
    _expect(path, "forces", forces, (frames, numbers.size, 3))
    energies = energies.reshape(-1) * KCAL_PER_MOL
    forces = forces * KCAL_PER_MOL
    return [
        Frame(
            numbers=numbers,
            positions=coords[index],
            cell=np.zeros((3, 3)),
            pbc=np.zeros(3, dtype=bool),
            energy=float(energies[index]),
            forces=forces[index],
            stress=None,
            config_type=DEFAULT_TYPE,
            weight=weight,
            source=str(path),
            index=index,
        )
        for index in range(frames)
    ]


def load_npz(path: Path) -> Arrays:
    """The arrays of a file by their names; DataError where it cannot be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # of zip, of numpy and of the decompressor: anything
        raise DataError(
            f"{path}: not a readable npz file ({error}); it may be truncated: fetch it again"
        ) from error


def _charges(path: Path, array: npt.NDArray[np.generic]) -> Integers:
    whole = array.dtype.kind in "iu" and array.ndim == 1
    if (
        not whole
        or array.size == 0
        or not (array.min() > 0 and array.max() < len(chemical_symbols))
    ):
        shown = str(array.ravel()[:5].tolist())[:80]
        raise DataError(
            f"{path}: nuclear_charges are {array.dtype} of shape {array.shape}, such as {shown}; "
            f"give the atomic number of each atom, 1 to {len(chemical_symbols) - 1}"
        )
    return array.astype(np.int64)


def _real(path: Path, key: str, array: npt.NDArray[np.generic]) -> Floats:
    if array.dtype.kind not in "iuf":
        raise DataError(f"{path}: {key} has type {array.dtype}, expected numbers; correct it")
    return array.astype(np.float64)


def _expect(path: Path, key: str, array: Floats, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise DataError(
            f"{path}: {key} has shape {array.shape}, expected {shape}; "
            f"coords, energies and forces must describe the same frames and atoms"
        )
