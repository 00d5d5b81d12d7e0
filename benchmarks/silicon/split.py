"""Silicon cells of mlearn by what a potential that knows the melt does not know.

    python benchmarks/silicon/split.py ../shared/data runs/silicon
    bayrace train benchmarks/silicon/silicon.yaml
    python benchmarks/sigma/table.py "runs/silicon/seed-*"

Cells of dynamics at 1518, 2530 and 3374 K are shared among training (40), validation (10) and a
test at home (10), by a fixed draw. Unknown are crystals at 300 and 843 K, vacancies, strained cells
and surfaces; `unknown.xyz` has all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read, write

HOT = 1500  # K
PARTS = {"train": 40, "valid": 10, "home": 10}


def groups(frames: list[Atoms]) -> dict[str, list[Atoms]]:
    """Cells of the melt, and of everything else by its name."""
    found: dict[str, list[Atoms]] = {}
    for frame in frames:
        kind, kelvin = str(frame.info["group"]), int(frame.info["T_K"])
        name = kind.lower()
        if kind == "AIMD-NVT":
            name = "melt" if kelvin > HOT else "crystal"
        found.setdefault(name, []).append(frame)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="Folder with mlearn/Si_mlearn.xyz.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--element", choices=["Si", "Ge"], default="Si")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    found = groups(read(options.data / "mlearn" / f"{options.element}_mlearn.xyz", ":"))
    melt = found.pop("melt")
    order = np.random.default_rng(0).permutation(len(melt)).tolist()
    start = 0
    for name, count in PARTS.items():
        found[name] = [melt[place] for place in order[start : start + count]]
        start += count
    found["unknown"] = [each for name in sorted(found) if name not in PARTS for each in found[name]]
    for name, frames in found.items():
        path = options.output / f"{name}.xyz"
        write(path, frames)
        print(f"{path}: {len(frames)}")


if __name__ == "__main__":
    main()
