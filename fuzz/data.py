"""Extended XYZ and npz files, damaged or hostile."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from mutate import damaged_bytes, hostile_text
from potentials import newcomer

from bayrace.data.check import check_frames
from bayrace.data.frame import DataError, LabelKeys
from bayrace.data.read import iterate_atoms, read_frames
from bayrace.data.split import fingerprint
from bayrace.potential.potential import Potential
from bayrace.predict.predict import NotFiniteError

EXPECTED = (DataError,)
_KEYS = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)
_MOST = 300  # atoms that are predicted

_WORDS = (
    *("nan", "inf", "-inf", "1e400", "-1", "0", "3", "99999999", "1e6", "3e5", "1e-3", "1e30"),
    *("10" * 30, "1" * 5000, "VEC1 1 0 0", "VEC2 0 1e-9 0", "X", "Xx", "Og", "", "\t", "\x00", "é"),
    *('Lattice="1e-3 0 0 0 1e-3 0 0 0 1e-3"', 'Lattice="1 2 3"', 'pbc="T T T"', 'pbc="T F x"'),
    *('Lattice="1e300 0 0 0 1e300 0 0 0 1e300"', 'Lattice="0.4 0 0 0 0.4 0 0 0 0.4"'),
    *("Properties=species:S:1:pos:R:3:x:R:99999999", "Properties=species:S:1:pos:R:-3", "="),
    *("Properties=pos:R:3", "Properties=species:I:1:pos:R:3", "Properties=species:S:1:pos:S:3"),
    *(
        "energy=abc",
        "energy=nan",
        'stress="1 2 3"',
        "a=[1,[2,3]]",
        'b="{1 2',
        "forces=1",
        "virial=T",
    ),
    *("_JSON {", "_JSON [[[", "numbers=1", "positions=2", "momenta=3", "config_type=IsolatedAtom"),
)


def write_case(number: int, draw: random.Random, folder: Path) -> Path:
    """One file."""
    if number % 4 == 3:
        path = folder / "case.npz"
        path.write_bytes(_npz(draw))
        return path
    path = folder / draw.choice(("case.xyz", "case.extxyz"))
    text = _XYZ if draw.random() < 0.8 else _VEC
    if draw.random() < 0.25:
        path.write_bytes(damaged_bytes(text.encode(), draw))
    else:
        path.write_text(hostile_text(text, draw, _WORDS), encoding="utf-8", errors="replace")
    return path


def try_case(path: Path) -> str:
    """Read it both ways, and predict what small structures it has."""
    frames = read_frames(path, keys=_KEYS, config_weights={})
    list(iterate_atoms(path))
    check_frames(frames, need_forces=False)
    fingerprint(frames)
    known = [f for f in frames if set(f.numbers.tolist()) <= {1, 6, 8} and len(f.numbers) <= _MOST]
    if not known:
        return "used"
    try:
        prediction = _potential().predict(known, stress=True)
    except NotFiniteError:
        return "refused"
    energy, forces = prediction.energy, prediction.forces
    results = (energy.mean, energy.total, forces.mean, forces.total)
    good = all(bool(torch.isfinite(value).all()) for value in results)
    return "used" if good else "NaN was returned"


def _potential() -> Potential:
    if not _made:
        _made.append(newcomer())
    return _made[0]


_made: list[Potential] = []


def _npz(draw: random.Random) -> bytes:
    frames, atoms = draw.choice((1, 3)), 4
    random_numbers = np.random.default_rng(draw.randrange(2**32))
    arrays: dict[str, object] = {
        "nuclear_charges": np.array([6, 1, 1, 8]),
        "coords": random_numbers.normal(size=(frames, atoms, 3)) * 2.0,
        "energies": random_numbers.normal(size=frames),
        "forces": random_numbers.normal(size=(frames, atoms, 3)),
    }
    for _ in range(draw.choice((0, 1, 1, 2))):
        key = draw.choice(sorted(arrays) or ["x"])
        value = np.asarray(arrays.pop(key, np.zeros(1)))
        kind = draw.randrange(8)
        if kind == 0:
            continue
        if kind == 1:
            kinds = ("U3", "S2", "c16", "bool", "f2", "u1", "M8[s]")
            with suppress(ValueError):  # text that is no number of that kind stays text
                value = value.astype(draw.choice(kinds))
        elif kind == 2:
            value = np.array(["H", "C", "C", "O"])
        elif kind == 3:
            value = value[..., :-1] if value.ndim else value
        elif kind == 4:
            value = np.asarray(draw.choice((np.zeros(()), np.zeros((0, 4, 3)), np.zeros((3, 0)))))
        elif kind == 5:
            with suppress(TypeError):  # text stays text
                value = value * draw.choice((-1, 0, 1e3, 1e6, 1e300))
        elif kind == 6:
            value = np.full(value.shape, draw.choice((np.nan, np.inf, 0.0, 1e18)))
        else:
            value = value[None]
        arrays[key] = value
    file = io.BytesIO()
    save = np.savez if draw.random() < 0.5 else np.savez_compressed
    save(file, **arrays)  # type: ignore[arg-type]
    data = file.getvalue()
    if draw.random() < 0.2:  # a header that announces what is not there
        data = data.replace(b"(3, 4, 3)", b"(3,10**9)"[:9]).replace(b"(1, 4, 3)", b"(999999,)")
    return damaged_bytes(data, draw) if draw.random() < 0.4 else data


_FRAME = """3
Lattice="8 0 0 0 8 0 0 0 8" Properties=species:S:1:pos:R:3:forces:R:3 energy=-2081.1 pbc="{pbc}"
O 0.0 0.0 0.0 0.1 0.0 0.0
H 0.96 0.0 {z} -0.1 0.0 0.0
H -0.24 0.93 0.0 0.0 0.0 0.0
"""
_XYZ = "".join(
    _FRAME.format(pbc=pbc, z=z) for pbc in ("T T T", "F F F", "T F T") for z in ("0", "0.1")
)
_VEC = """3
a comment
O 0.0 0.0 0.0
H 0.96 0.0 0.0
H -0.24 0.93 0.0
VEC1 8.0 0.0 0.0
VEC2 0.0 8.0 0.0
VEC3 0.0 0.0 8.0
"""
