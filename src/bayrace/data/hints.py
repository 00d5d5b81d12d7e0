"""Which keys of files look like labels, for those who did not name any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import ase.io
import numpy as np
from ase import Atoms

from bayrace.data.frame import Frame, results_of

_NAMES = {
    "energy": re.compile(r"energ|^e$|^u0$|_e$|^e_|etot|e_tot", re.IGNORECASE),
    "forces": re.compile(r"forc|grad|^f$|^f_|_f$", re.IGNORECASE),
    "stress": re.compile(r"stress|virial", re.IGNORECASE),
}
_SHAPES = {"energy": {(), (1,)}, "stress": {(6,), (9,), (3, 3)}}
_NEVER = {"positions", "momenta", "initial_magmoms", "numbers", "magmoms"}


def label_like(sources: Iterable[str], name: str) -> dict[str, list[str]]:
    """Keys of the first frame of each file that could be energy, forces or stress.

    By shape, and of those by name if any has one; files that cannot be read have none.
    """
    found = {}
    for source in dict.fromkeys(sources):
        try:
            atoms = ase.io.read(source, index=0)
        except Exception:  # noqa: S112 - a hint must not hide the error it belongs to
            continue
        if isinstance(atoms, Atoms):
            keys = sorted(_of_shape(atoms, name))
            found[source] = [key for key in keys if _NAMES[name].search(key)] or keys
    return {source: keys for source, keys in found.items() if keys}


def label_hint(frames: Iterable[Frame]) -> str:
    """Keys of the files of these frames that look like labels, for a message; or nothing."""
    sources = {frame.source for frame in frames}
    found = {
        name: sorted({key for keys in label_like(sources, name).values() for key in keys})
        for name in ("energy", "forces")
    }
    like = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in found.items() if keys)
    return f" (these look like it: {like})" if like else ""


def _of_shape(atoms: Atoms, name: str) -> Iterator[str]:
    places: tuple[dict[str, Any], ...] = (atoms.info, atoms.arrays, results_of(atoms))
    for place in places:
        for key, value in place.items():
            array = np.asarray(value)
            wanted = _SHAPES.get(name, {(len(atoms), 3)})
            if key not in _NEVER and array.dtype.kind in "iuf" and array.shape in wanted:
                yield key
