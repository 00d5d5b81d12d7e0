"""Write the fixed split of an npz table of QM9: 11 000, 1000 and the rest, by molecule id.

    python benchmarks/paper/qm9_split.py /work/shared/data/qm9/qm9_13845.npz data/qm9

Molecules are sorted by their id and shuffled with seed 0, so that the split does not depend on the
order of the file. With --heavy 8 the training and validation sets have at most that many heavy
atoms and unknown.npz has the others: for the detection of larger molecules.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np


def main() -> None:
    """Read, split, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=11_000)
    parser.add_argument("--valid", type=int, default=1_000)
    parser.add_argument("--heavy", type=int, default=None)
    options = parser.parse_args()
    with np.load(options.table) as file:
        arrays = {name: file[name] for name in file.files}
    order = np.argsort(arrays["gdb_id"], kind="stable")
    shuffled = np.random.default_rng(0).permutation(order)
    train, valid, test = np.split(shuffled, [options.train, options.train + options.valid])
    sets = {"train": train, "valid": valid, "test": test}
    if options.heavy is not None:
        few = (arrays["Z"] > 1).sum(1) <= options.heavy
        sets["unknown"] = test[~few[test]]
        sets |= {name: chosen[few[chosen]] for name, chosen in list(sets.items())[:3]}
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in sets.items():
        part = {k: v if k == "prop_names" else v[chosen] for k, v in arrays.items()}
        np.savez_compressed(options.folder / f"{name}.npz", **part)
        print(f"{name}: {len(chosen)} molecules, {options.folder / f'{name}.npz'}")


if __name__ == "__main__":
    main()
