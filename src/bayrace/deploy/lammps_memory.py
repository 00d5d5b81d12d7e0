"""LAMMPS' own memory for what is read and written at every step.

LAMMPS' Python module makes arrays and checks for errors anew in every call, which for a few dozen
atoms costs as much as their forces. Here its library is called directly: once before a prediction
and once after it, by compiled code (lammps.c), which does what `give` and `tell` do too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.nn.compiler import build
from bayrace.nn.kernels import resolve
from bayrace.nn.sources import source_text

Array = NDArray[np.float64]
Callback = Callable[[int, int, int, int], None]
"""Of the step, the number of atoms, and the rows of positions and forces, as addresses."""

_POINTER = ctypes.c_void_p
_BOX: dict[str, tuple[int, Any]] = {
    "boxlo": (3, np.float64),
    "boxhi": (3, np.float64),
    "periodicity": (3, np.int32),
    **dict.fromkeys(("xy", "xz", "yz"), (1, np.float64)),
}
_ATOMS = ("id", "image", "type")
_VOIGT = np.array([0, 4, 8, 1, 2, 5])  # LAMMPS' order xx, yy, zz, xy, xz, yz, among 3 × 3


@dataclass(frozen=True, eq=False)
class Layout:
    """What few steps change, n atoms in the order of their tags."""

    key: tuple[bytes, ...]  # what it was made of
    order: NDArray[np.int64]  # (n,) the places that LAMMPS, which sorts atoms, keeps them at
    kinds: NDArray[np.int64]  # (n,) types
    cell: Array  # (3, 3) Å
    pbc: NDArray[np.bool_]  # (3,)
    offsets: Array  # (n, 3) Å, that unwrap the positions, in LAMMPS' order
    positions: Array  # (n, 3) Å, filled by `gather`
    room: Array  # (18 n,) to work in
    given: Given  # the same as C has it


class Memory:
    """Of one instance of LAMMPS, whose box is there; `fix` names its fix external."""

    def __init__(self, lammps: Any, fix: str) -> None:
        self._lammps, self._handle, self._fix = lammps, lammps.lmp, fix.encode()
        self._extract = _function(lammps, "extract_atom", [ctypes.c_char_p], _POINTER)
        find = _function(lammps, "extract_global", [ctypes.c_char_p], _POINTER)
        self._box = {
            key: _view(find(self._handle, key.encode()), count, dtype)
            for key, (count, dtype) in _BOX.items()
        }
        self.library = _library_of(lammps, self._fix)
        self._compiled = load("", torch.float64, 0) if compiled() else None

    def listen(self, callback: Callback) -> None:
        """Have the fix call this at every step; nobody sees an exception that leaves it."""
        rows, number = [_POINTER] * 3, self._lammps.c_bigint
        kind = ctypes.CFUNCTYPE(None, _POINTER, number, ctypes.c_int, *rows)

        def called(_caller: int, step: int, count: int, _tag: int, x: int, f: int) -> None:
            callback(step, count, x, f)

        listen = _function(
            self._lammps, "set_fix_external_callback", [ctypes.c_char_p, kind, _POINTER]
        )
        held = kind(called)
        listen(self._handle, self._fix, held, self._handle)  # it must name a caller
        # lives as long as the instance that calls it, as LAMMPS' module has it
        self._lammps.callback[self._fix.decode()] = {"function": held, "caller": None}

    def layout(self, count: int) -> Layout:
        """How `count` atoms lie in LAMMPS now; one that enters on the other side has not moved."""
        tag, image, kinds = parts = self._atoms(count)
        box = self._box
        cell, pbc = np.diag(box["boxhi"] - box["boxlo"]), box["periodicity"] != 0
        cell[1, 0], cell[2, 0], cell[2, 1] = (box[name].item() for name in ("xy", "xz", "yz"))
        turned = image.astype(np.int64)
        turns = np.stack([turned & 1023, turned >> 10 & 1023, turned >> 20], axis=1) - 512
        order = np.argsort(tag, kind="stable").astype(np.int64)
        key = tuple(each.tobytes() for each in (*box.values(), *parts))
        offsets, room = (turns * pbc) @ cell, np.empty(18 * count)
        given = Given(
            count,
            abs(float(np.linalg.det(cell))) if pbc.all() else 0.0,
            (_POINTER * len(box))(*(each.ctypes.data for each in box.values())),
            (ctypes.c_long * len(key))(*map(len, key)),
            *(b"".join(key), order.ctypes.data, offsets.ctypes.data),
        )
        positions = np.empty((count, 3))
        numbers = kinds[order].astype(np.int64)
        return Layout(key, order, numbers, cell, pbc, offsets, positions, room, given)

    def gather(self, layout: Layout, x: int) -> bool:
        """Fill the positions from these rows; False if LAMMPS has laid out something anew."""
        if self._compiled is None:
            return self._gather(layout, x)
        return bool(
            self._compiled["gather"](
                ctypes.byref(self.library),
                ctypes.byref(layout.given),
                *(x, layout.positions.ctypes.data),
            )
        )

    def give(
        self,
        layout: Layout,
        f: int,
        unit: float,
        energy: float,
        energies: Array,
        forces: Array,
        virial: Array | None,
    ) -> None:
        """Energy in eV, that of atoms (n,), forces (n, 3), virial (3, 3), times a unit."""
        count, library, who = len(layout.order), self.library, (self._handle, self._fix)
        _view(_first(f), 3 * count, np.float64).reshape(count, 3)[layout.order] = forces * unit
        room = layout.room[:count]
        room[layout.order] = energies * unit
        parts = np.zeros(6) if virial is None else virial.ravel()[_VOIGT] * unit
        library.set_energy(*who, energy * unit)
        library.set_energies(*who, room.ctypes.data)
        library.set_virial(*who, parts.ctypes.data)
        self.check()

    def tell(
        self, layout: Layout, properties: Mapping[str, Array], vector: Sequence[float]
    ) -> None:
        """Properties of atoms, (n,), and the vector of the fix."""
        count = len(layout.order)
        for name, values in properties.items():
            address = self._extract(self._handle, name.encode())
            refuse(bool(address) or not count)
            _view(address, count, np.float64)[layout.order] = values
        for place, number in enumerate(vector, start=1):
            self.library.set_vector(self._handle, self._fix, place, number)
        self.check()

    def check(self) -> None:
        """Raise if LAMMPS has refused one of the calls."""
        refuse(not self.library.has_error(self._handle))

    def clear(self, count: int, f: int) -> None:
        """No forces."""
        _view(_first(f), 3 * count, np.float64)[:] = 0.0

    def _gather(self, layout: Layout, x: int) -> bool:
        count = len(layout.order)
        parts = (*self._box.values(), *self._atoms(count))
        if layout.key != tuple(each.tobytes() for each in parts):
            return False
        rows = _view(_first(x), 3 * count, np.float64).reshape(count, 3)
        layout.positions[:] = (rows + layout.offsets)[layout.order]
        return True

    def _atoms(self, count: int) -> list[Any]:
        """Tags, images and types, (count,)."""
        whole = (self._lammps.c_tagint, np.int32, np.int32)
        return [
            _view(self._extract(self._handle, name.encode()), count, dtype)
            for name, dtype in zip(_ATOMS, whole, strict=True)
        ]


def compiled() -> bool:
    """Whether the compiled functions are there."""
    return resolve(load, "", 1, torch.float64, "cpu", "auto") == "fused"


@cache
def load(_key: str, _dtype: torch.dtype, _lanes: int) -> dict[str, Any]:
    """The compiled functions by name.

    Raises:
        CompilerError: they cannot be built here.
    """
    library = build(source_text("lammps.c", package="bayrace.deploy"), {})
    pointer = _POINTER
    library.gather.argtypes = [pointer] * 4
    library.finish.argtypes = [*[pointer] * 14, ctypes.c_long, *[pointer] * 3]
    functions = {name: getattr(library, name) for name in ("gather", "finish")}
    for function in functions.values():
        function.restype = ctypes.c_int
    return functions


_NAME, _NUMBER = ctypes.c_char_p, ctypes.c_double


class Library(ctypes.Structure):
    """`library` of lammps.c."""

    _fields_: ClassVar = [
        ("lammps", _POINTER),
        ("fix", _NAME),
        ("extract", ctypes.CFUNCTYPE(_POINTER, _POINTER, _NAME)),
        ("set_energy", ctypes.CFUNCTYPE(None, _POINTER, _NAME, _NUMBER)),
        ("set_energies", ctypes.CFUNCTYPE(None, _POINTER, _NAME, _POINTER)),
        ("set_virial", ctypes.CFUNCTYPE(None, _POINTER, _NAME, _POINTER)),
        ("set_vector", ctypes.CFUNCTYPE(None, _POINTER, _NAME, ctypes.c_int, _NUMBER)),
        ("has_error", ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)),
    ]


class Given(ctypes.Structure):
    """`layout` of lammps.c; what it points to lives in a `Layout`."""

    _fields_: ClassVar = [
        ("atoms", ctypes.c_long),
        ("volume", ctypes.c_double),
        ("box", _POINTER * len(_BOX)),
        ("bytes", ctypes.c_long * (len(_BOX) + len(_ATOMS))),
        ("then", _NAME),
        ("order", _POINTER),
        ("offsets", _POINTER),
    ]


def _library_of(lammps: Any, fix: bytes) -> Library:
    names = ["extract_atom"]
    names += [f"fix_external_set_{what}" for what in ("energy_global", "energy_peratom")]
    names += [f"fix_external_set_{what}" for what in ("virial_global", "vector")]
    kinds: list[Any] = [field[1] for field in Library._fields_[2:]]
    functions = (
        kind((f"lammps_{name}", lammps.lib))
        for kind, name in zip(kinds, [*names, "has_error"], strict=True)
    )
    return Library(lammps.lmp, fix, *functions)


def refuse(accepted: bool) -> None:
    """Raise unless LAMMPS has accepted everything."""
    if not accepted:
        raise ValueError("LAMMPS refused what the potential says; keep the fixes of bayrace")


def _first(rows: int) -> int:
    """Where the first of several rows is, which follow each other; 0 where there are none."""
    return (_POINTER.from_address(rows).value or 0) if rows else 0


def _view(address: int, count: int, dtype: Any) -> Any:
    if not count:
        return np.empty(0, dtype)
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def _function(lammps: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    """A function of the library, apart from the one whose types LAMMPS' module changes."""
    kind = ctypes.CFUNCTYPE(result, _POINTER, *arguments)
    return kind((f"lammps_{name}", lammps.lib))
