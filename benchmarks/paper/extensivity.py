"""How σ of the energy grows with the system, 64 to 512 atoms: a figure and its numbers.

    python benchmarks/paper/extensivity.py model.bayrace test.xyz -o extensivity.png

Systems are made of the molecules of the file: different ones side by side, and one of them again
and again, so far apart that none knows of the others. Noise of independent parts adds up as √N; so
does ignorance where parts err independently, and of replicas, which all err alike, it grows as N.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bayrace.data.frame import Frame, bare_frame, frame_from_atoms
from bayrace.data.read import iterate_atoms
from bayrace.potential.potential import Potential

SIZES = (64, 128, 256, 512)  # atoms, about
SYSTEMS = 8  # of each size
Array = NDArray[np.float64]


def side_by_side(parts: Sequence[Frame], apart: float) -> Frame:
    """Molecules on a cubic lattice, `apart` Å between their boxes."""
    extent = max(float(np.ptp(part.positions, axis=0).max()) for part in parts) + apart
    edge = int(np.ceil(len(parts) ** (1 / 3)))
    places = np.stack(np.unravel_index(np.arange(len(parts)), (edge,) * 3), axis=1) * extent
    positions = [
        part.positions - part.positions.mean(0) + place
        for part, place in zip(parts, places, strict=True)
    ]
    return bare_frame(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate(positions),
        np.zeros((3, 3)),
        np.zeros(3, dtype=bool),
        source="side by side",
    )


def spreads(potential: Potential, systems: Sequence[Frame]) -> tuple[Array, Array, Array]:
    """Atoms, aleatoric and epistemic σ of the energy of each system, eV."""
    energy = potential.predict(list(systems)).energy
    atoms = np.array([len(each.numbers) for each in systems], dtype=np.float64)
    return (
        atoms,
        energy.aleatoric.sqrt().numpy(force=True),
        energy.epistemic.sqrt().numpy(force=True),
    )


def measure(potential: Potential, molecules: Sequence[Frame]) -> dict[str, tuple[Array, Array]]:
    """Atoms and σ of every system, by what it is."""
    random = np.random.default_rng(0)
    repeated = random.choice(len(molecules), SYSTEMS)  # the same ones at every size
    apart = 2 * potential.model.cutoff + 1.0
    found: dict[str, tuple[Array, Array]] = {}
    for name in ("different", "replicas"):
        systems = []
        for size in SIZES:
            count = max(1, round(size / len(molecules[0].numbers)))
            for again in repeated:
                drawn = random.choice(len(molecules), count, replace=count > len(molecules))
                chosen = drawn if name == "different" else np.repeat(again, count)
                systems.append(side_by_side([molecules[k] for k in chosen], apart))
        atoms, noise, ignorance = spreads(potential, systems)
        found[f"noise, {name}"] = atoms, noise
        found[f"ignorance, {name}"] = atoms, ignorance
    return {name: values for name, values in found.items() if values[1].any()}


def exponent(atoms: Array, sigma: Array) -> float:
    """Of the power of N that σ grows as."""
    return float(np.polyfit(np.log(atoms), np.log(sigma), 1)[0])


def draw(found: dict[str, tuple[Array, Array]]) -> Figure:
    """σ against the number of atoms, both logarithmic, with the two laws."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, (atoms, sigma) in found.items():
        label = f"{name}: N^{exponent(atoms, sigma):.2f}"
        axes.loglog(atoms, sigma * 1000, "o", markersize=4, alpha=0.6, label=label)
    ends = np.array([min(SIZES), max(SIZES)], dtype=np.float64)
    first = [float(np.median(s[a == a.min()])) * 1000 for a, s in found.values()]
    for power, style in ((0.5, ":"), (1.0, "--")):
        line = np.exp(np.mean(np.log(first))) * (ends / ends[0]) ** power
        axes.loglog(ends, line, style, color="grey", label=f"N^{power:g}")
    axes.set_xlabel("atoms")
    axes.set_ylabel("σ of the energy (meV)")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def main() -> None:
    """Predict, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("structures", help="molecules of one composition")
    parser.add_argument("-o", "--output", type=Path, default=Path("extensivity.png"))
    options = parser.parse_args()
    frames = [
        frame_from_atoms(atoms, keys=None) for _, _, atoms in iterate_atoms(options.structures)
    ]
    found = measure(Potential.load(options.model), [f for f in frames if not f.pbc.any()])
    for name, (atoms, sigma) in found.items():
        means = [f"{1000 * sigma[atoms == size].mean():.1f}" for size in np.unique(atoms)]
        print(f"{name}: N^{exponent(atoms, sigma):.3f}; meV at each size: {', '.join(means)}")
    draw(found).savefig(options.output, dpi=150)
    print(options.output)


if __name__ == "__main__":
    main()
