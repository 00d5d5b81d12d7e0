"""Bonds shorter than any in the training data: what the potential says, and what is true.

    python benchmarks/short_range.py demo-output/model.bayrace

Every bond of ethanol starts at the shortest distance that it has in the training frames, in the
frame that has it, and is shortened by 0.15 Å: the lighter side moves along the bond, as a rigid
body. GFN2-xTB, which labelled the frames, tells the true forces. Printed are the largest force
error of an atom on the way, where the stop rule spoke (Å below the shortest), where the error first
exceeded 0.5 eV/Å, and whether the force that drives the two atoms apart rose throughout.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame
from bayrace.label.oracles.xtb import Gfn2
from bayrace.potential.potential import Potential
from bayrace.simulate.stop import StopRule

BOND = {(1, 6): 1.3, (1, 8): 1.25, (6, 6): 1.8, (6, 8): 1.7}  # Å, at most, by atomic numbers
STEP, DEPTH = 0.01, 0.15  # Å
LATE = 0.5  # eV/Å, before which the stop rule should speak


@dataclass(frozen=True)
class Scan:
    """One bond on its way down; entry k is k · STEP below the shortest training distance."""

    name: str
    shortest: float  # Å
    errors: NDArray[np.float64]  # eV/Å, of the worst atom
    apart: NDArray[np.float64]  # eV/Å, predicted force that drives the bonded atoms apart
    truly_apart: NDArray[np.float64]
    spread: NDArray[np.float64]  # eV/Å, largest σ of a force component
    spoke: float  # Å below, where the rule spoke; ∞ if never

    @property
    def wrong(self) -> float:
        """Å below, where the error first exceeds LATE; ∞ if never."""
        beyond = np.flatnonzero(self.errors > LATE)
        return float(beyond[0]) * STEP if len(beyond) else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    options = parser.parse_args()
    potential = Potential.load(options.model, device="cpu")
    rule = StopRule(0.5, 0.05, gap=potential.gap_limit)  # as `bayrace md` without options
    print(f"stop rule: P(error > 0.5 eV/Å) > 5 %, or a gap above {rule.gap} Å")
    report([scan(potential, rule, bond) for bond in bonds(embedded_frames("ethanol-train"))])


@dataclass(frozen=True)
class Bond:
    """The shortest instance of a bond."""

    frame: Frame
    fixed: int
    moving: int  # on the lighter side
    side: tuple[int, ...]  # atoms that move with it

    @property
    def length(self) -> float:
        return float(np.linalg.norm(self._vector))

    @property
    def _vector(self) -> NDArray[np.float64]:
        return self.frame.positions[self.moving] - self.frame.positions[self.fixed]

    @property
    def direction(self) -> NDArray[np.float64]:
        return self._vector / self.length

    def shortened(self, by: float) -> Frame:
        positions = self.frame.positions.copy()
        positions[list(self.side)] -= by * self.direction
        return replace(self.frame, positions=positions)


def bonds(frames: Sequence[Frame]) -> list[Bond]:
    """Each bond of the molecule, in the frame where it is shortest."""
    numbers = frames[0].numbers
    connected = pairs(frames[0])
    found = []
    for first, second in connected:
        frame = min(frames, key=lambda f: np.linalg.norm(f.positions[first] - f.positions[second]))
        sides = [side(connected, a, b) for a, b in ((first, second), (second, first))]
        light = min((0, 1), key=lambda k: numbers[list(sides[k])].sum())
        moving, fixed = ((first, second), (second, first))[light]
        found.append(Bond(frame, fixed, moving, sides[light]))
    return found


def pairs(frame: Frame) -> list[tuple[int, int]]:
    count = len(frame.numbers)
    result = []
    for i in range(count):
        for j in range(i + 1, count):
            low, high = sorted((int(frame.numbers[i]), int(frame.numbers[j])))
            distance = np.linalg.norm(frame.positions[i] - frame.positions[j])
            if distance < BOND.get((low, high), 0.0):
                result.append((i, j))
    return result


def side(connected: list[tuple[int, int]], start: int, barred: int) -> tuple[int, ...]:
    """Atoms that hang on `start` without passing `barred`."""
    reached, todo = {start}, [start]
    while todo:
        atom = todo.pop()
        for pair in connected:
            if atom in pair:
                other = pair[0] if pair[1] == atom else pair[1]
                if other not in reached and {atom, other} != {start, barred}:
                    reached.add(other)
                    todo.append(other)
    return tuple(sorted(reached))


def scan(potential: Potential, rule: StopRule, bond: Bond) -> Scan:
    frames = [bond.shortened(STEP * k) for k in range(round(DEPTH / STEP) + 1)]
    oracle, errors, truly, apart, spread = Gfn2(), [], [], [], []
    spoke = math.inf
    calibration = potential.calibration
    shape = calibration.forces.shape if calibration and calibration.forces else None
    for place, frame in enumerate(frames):
        truth = oracle.label(frame).forces
        found = potential.predict(frame).forces
        mean, total = found.mean.numpy().astype(float), found.total.numpy().astype(float)
        errors.append(np.linalg.norm(mean - truth, axis=1).max())
        truly.append(_apart(bond, truth))
        apart.append(_apart(bond, mean))
        spread.append(np.sqrt(np.einsum("nii->ni", total)).max())
        gap = None if potential.distances is None else potential.distances.gap(frame)
        if spoke == math.inf and rule.broken(rule.risk(total, shape), gap):
            spoke = place * STEP
    symbols = "-".join(
        f"{ {1: 'H', 6: 'C', 8: 'O'}[int(bond.frame.numbers[a])] }{a}"
        for a in (bond.fixed, bond.moving)
    )
    arrays = [np.array(values) for values in (errors, apart, truly, spread)]
    return Scan(symbols, bond.length, *arrays, spoke)


def _apart(bond: Bond, forces: NDArray[np.float64]) -> float:
    """Half the difference of the two forces along the bond, positive if it pushes."""
    return float((forces[bond.moving] - forces[bond.fixed]) @ bond.direction) / 2


def report(scans: list[Scan]) -> None:
    print(
        "bond    shortest  error at -0.05  -0.10  -0.15 eV/Å   "
        "σ at -0.15   spoke   wrong   repulsive"
    )
    for one in scans:
        error = [one.errors[round(depth / STEP)] for depth in (0.05, 0.10, 0.15)]
        rising = bool((np.diff(one.apart) > 0).all())
        print(
            f"{one.name:8s}{one.shortest:8.3f}  {error[0]:14.3f}  {error[1]:5.2f}  {error[2]:5.2f}"
            f"       {one.spread[-1]:10.2f}   {one.spoke:5.2f}   {one.wrong:5.2f}   {rising}"
        )
    at = round(0.05 / STEP)
    print(f"worst force error 0.05 Å beyond the data: {max(s.errors[at] for s in scans):.3f} eV/Å")
    print(f"repulsive throughout: {all((np.diff(s.apart) > 0).all() for s in scans)}")
    in_time = sum(s.spoke < s.wrong or s.wrong == math.inf for s in scans)
    print(f"the stop rule spoke before the error exceeded {LATE} eV/Å: {in_time} of {len(scans)}")


if __name__ == "__main__":
    main()
