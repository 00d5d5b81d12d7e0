"""Long pools and large structures: how much memory they take at most."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols
from common import Amount, need
from crowds import small_model

from bayrace.data.embedded import embedded_frames

_MEASURED = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0]) if sys.argv[0].endswith(".py") else runpy.run_module(
        "bayrace.cli.main", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""  # MB

_LARGE = """
import sys
import numpy as np
from ase import Atoms
from bayrace import Calculator
_, model, count, uncertainty = sys.argv
side = round(float(count) ** (1 / 3))
step, random = 10 ** (1 / 3), np.random.default_rng(0)  # ten cubic ångström an atom
grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3) * step
grid += random.normal(0, 0.1, grid.shape)
numbers = random.choice([1, 6, 8], len(grid))
atoms = Atoms(numbers, positions=grid, cell=[side * step] * 3, pbc=True)
atoms.calc = Calculator(model, uncertainty=uncertainty == "1")
assert np.isfinite(atoms.get_potential_energy()) and np.isfinite(atoms.get_forces()).all()
"""


def pools(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """Ten times the structures take at most 1.2 times the memory."""
    model, calls = small_model(folder), []
    for count in (amount.frames // 10, amount.frames):
        pool = _pool(folder / f"pool-{count}.xyz", count, random)
        calls.append(("predict", model, pool, "-o", folder / f"predicted-{count}.xyz"))
        calls.append(("select", pool, "-m", model, "-n", 20, "-o", folder / f"chosen-{count}.xyz"))
    with ThreadPoolExecutor(len(calls)) as side_by_side:
        peaks = list(side_by_side.map(lambda call: _peak("bayrace", *call), calls))
    found = {"predict": peaks[::2], "select": peaks[1::2]}
    for name, (few, many) in found.items():
        need(many <= 1.2 * few, f"{name}: {few} MB for a tenth, {many} MB for {amount.frames}")
    shown = ", ".join(f"{name} {few} and {many} MB" for name, (few, many) in found.items())
    return f"{amount.frames // 10} and {amount.frames} structures: {shown}"


def large(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """A hundred thousand atoms, with and without σ, in 12 GB."""
    del random
    model, script = small_model(folder), folder / "large.py"
    script.write_text(_LARGE, "utf-8")
    peaks = [_peak(script, model, amount.atoms, uncertain) for uncertain in (1, 0)]
    need(max(peaks) <= 12_000, f"{max(peaks)} MB")
    return f"{amount.atoms} atoms: {peaks[0]} MB with σ, {peaks[1]} MB without"


def _peak(*call: object) -> int:
    """Most memory of a process, MB."""
    command = [sys.executable, "-c", _MEASURED, *map(str, call)]
    ended = subprocess.run(command, capture_output=True, text=True)
    need(ended.returncode == 0, ended.stdout + ended.stderr)
    return int(ended.stdout.split()[-1])


def _pool(path: Path, count: int, random: np.random.Generator) -> Path:
    """Rattled ethanol."""
    frames = embedded_frames("ethanol-train")
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            frame = frames[number % len(frames)]
            moved = frame.positions + random.normal(0, 0.03, frame.positions.shape)
            rows = "".join(f"{chemical_symbols[atom]} %.6f %.6f %.6f\n" for atom in frame.numbers)
            head = f"{len(moved)}\nProperties=species:S:1:pos:R:3\n"
            file.write(head + rows % tuple(moved.ravel().tolist()))
    return path
