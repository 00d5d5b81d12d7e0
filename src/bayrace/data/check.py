"""Refusing data that cannot be trained on, each with its place, its value and a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

import numpy as np
from ase.data import chemical_symbols

from bayrace.data.extent import OVERLAP, beyond, plan_search
from bayrace.data.frame import ISOLATED_TYPE, DataError, Floats, Frame, symbols_of
from bayrace.data.hints import label_hint, label_like
from bayrace.data.neighbours import edge_lengths, neighbour_list
from bayrace.data.summary import DataReport, report

__all__ = ["DataReport", "check_frame", "check_frames", "check_labelled", "problems", "report"]

_SEARCH = 1.5  # Å; vesin is slow when its cells are much smaller than a bond
_TOLD = 2  # problems that an error tells whole
_WITHOUT = {  # a label: the changes of a configuration that does without it
    "energy": "-s loss.kind=mse -s loss.energy=0",
    "forces": "-s loss.kind=nll_e -s loss.forces=0",
    "stress": "-s loss.stress=0 -s loss.stress_noise=false",
}
DEGENERATE = 1e-6  # least volume of the unit cell vectors, 1 when they are orthogonal


def check_frames(
    frames: Sequence[Frame],
    *,
    need_forces: bool,
    need_energy: bool = False,
    need_stress: bool = False,
    elements: tuple[int, ...] | None = None,
) -> None:
    """Refuse frames that cannot be used; `elements` are those the model was trained with."""
    found = problems(
        frames,
        need_forces=need_forces,
        need_energy=need_energy,
        need_stress=need_stress,
        elements=elements,
    )
    refuse(found)


class LabelNeeds(TypedDict):
    """Which labels training cannot do without; arguments of `problems`."""

    need_energy: bool
    need_forces: bool
    need_stress: bool


def check_labelled(frames: Sequence[Frame]) -> None:
    """Refuse a set to compare with in which there is nothing to compare with."""
    if not any(frame.labelled for frame in frames):
        sources = ", ".join(sorted({frame.source for frame in frames}))
        raise DataError(
            f"{sources}: no frame has an energy or forces to compare with; set energy_key and "
            f"forces_key to their names in the file{label_hint(frames)}, or leave the file out"
        )


def refuse(found: Sequence[str]) -> None:
    """Raise the first of these problems, and say how to see the others; two are both told."""
    if len(found) > _TOLD:
        others = f"(and {len(found) - 1} more problems; bayrace validate FILES shows them)"
        raise DataError(f"{found[0]} {others}")
    if found:
        raise DataError("\n".join(found))


def check_frame(frame: Frame) -> None:
    """Refuse a frame that no model can use."""
    for problem in _frame_problems(frame):
        raise DataError(problem)


def problems(
    frames: Sequence[Frame],
    *,
    need_forces: bool,
    need_energy: bool = False,
    need_stress: bool = False,
    elements: tuple[int, ...] | None = None,
) -> list[str]:
    """Every problem of these frames, at most one a frame, as messages."""
    if not frames:
        return ["no frames; give at least one structure"]
    found = [message for frame in frames for message in _first(_frame_problems(frame))]
    if elements is not None:
        found += [message for frame in frames for message in _unknown_elements(frame, elements)]
    needed = {"energy": need_energy, "forces": need_forces, "stress": need_stress}
    labelled = [frame for frame in frames if frame.config_type != ISOLATED_TYPE]
    for name, need in needed.items():
        if need and all(getattr(frame, name) is None for frame in labelled):
            found.append(_absent(frames, name))
    return found


def _first(messages: Iterator[str]) -> list[str]:
    message = next(messages, None)
    return [] if message is None else [message]


def _absent(frames: Sequence[Frame], name: str) -> str:
    sources = sorted({frame.source for frame in frames})
    keys = label_like(sources, name)
    like = "; ".join(f"{', '.join(found)} in {source}" for source, found in keys.items())
    hint = f" (these look like it: {like})" if like else ""
    return (
        f"{', '.join(sources)}: none of the {len(frames)} frames has a label for {name}; "
        f"set {name}_key to its name in the file{hint}, or train without: {_WITHOUT[name]}"
    )


def _frame_problems(frame: Frame) -> Iterator[str]:
    """Messages, worst first; later ones assume that the earlier ones did not occur."""
    if len(frame.numbers) == 0:
        yield f"{frame.origin}: has 0 atoms; remove the frame"
        return
    yield from _shapes(frame)
    yield from _not_finite(frame)
    if far := beyond(frame.positions, frame.cell * frame.pbc[:, None]):
        yield f"{frame.origin}: {far}"
    yield from _degenerate_cell(frame)
    yield from _beyond_search(frame)
    yield from _overlap(frame)


def _shapes(frame: Frame) -> Iterator[str]:
    atoms = len(frame.numbers)
    expected = {"positions": (atoms, 3), "cell": (3, 3), "forces": (atoms, 3), "stress": (6,)}
    for name, shape in expected.items():
        value = getattr(frame, name)
        if value is not None and value.shape != shape:
            yield f"{frame.origin}: {name} has shape {value.shape}, expected {shape}; correct it"
    for atom in np.flatnonzero((frame.numbers < 1) | (frame.numbers >= len(chemical_symbols))):
        yield (
            f"{frame.origin}: atom {atom} has atomic number {frame.numbers[atom]}; "
            f"correct its symbol or remove the frame"
        )


def _not_finite(frame: Frame) -> Iterator[str]:
    for name in ("positions", "cell", "energy", "forces", "stress"):
        value = getattr(frame, name)
        if value is None or np.isfinite(value).all():
            continue
        remedy = (
            "remove the frame" if name in {"positions", "cell"} else "remove the label or the frame"
        )
        yield f"{frame.origin}: {_where(name, np.atleast_1d(value))}; {remedy}"


def _where(name: str, value: Floats) -> str:
    place = np.unravel_index(int(np.argmin(np.isfinite(value))), value.shape)
    number = value[place]
    if name in {"positions", "forces"}:
        return f"{name} of atom {place[0]} is {number} in direction {'xyz'[place[1]]}"
    return f"{name} is {number}"


def _degenerate_cell(frame: Frame) -> Iterator[str]:
    vectors = frame.cell[frame.pbc]
    if len(vectors) == 0:
        return
    lengths = np.linalg.norm(vectors, axis=1)
    measure = np.sqrt(max(np.linalg.det(vectors @ vectors.T), 0.0))
    if lengths.min() > DEGENERATE and measure > DEGENERATE * lengths.prod():
        return
    pbc = " ".join("T" if periodic else "F" for periodic in frame.pbc)
    what = {1: "a length", 2: "an area", 3: "a volume"}[len(vectors)]
    yield (
        f'{frame.origin}: pbc="{pbc}" but the periodic cell vectors {vectors.tolist()} span '
        f'{what} of {measure:.3g}; give the cell (Lattice), or set pbc="F F F" for a molecule'
    )


def _beyond_search(frame: Frame) -> Iterator[str]:
    box = np.where(frame.pbc[:, None], frame.cell, 0.0)
    problem = plan_search(frame.positions, box, frame.pbc, _SEARCH).problem
    if problem is not None:
        yield f"{frame.origin}: {problem}"


def _overlap(frame: Frame) -> Iterator[str]:
    edges, shifts = neighbour_list(frame.positions, frame.cell, frame.pbc, _SEARCH)
    distances = edge_lengths(frame.positions, frame.cell, frame.pbc, edges, shifts)
    if distances.min(initial=np.inf) >= OVERLAP:
        return
    worst = int(np.argmin(distances))
    first, second = (
        f"{atom} ({chemical_symbols[frame.numbers[atom]]})" for atom in edges[:, worst]
    )
    image = " (a periodic image)" if shifts[worst].any() else ""
    yield (
        f"{frame.origin}: atoms {first} and {second}{image} are {distances[worst]:.3g} Å apart, "
        f"closer than {OVERLAP} Å; check positions, cell and units, or remove the frame"
    )


def _unknown_elements(frame: Frame, elements: tuple[int, ...]) -> Iterator[str]:
    unknown = sorted({int(number) for number in frame.numbers} - set(elements))
    if unknown:
        yield (
            f"{frame.origin}: has {symbols_of(unknown)}, which the training data did not have; "
            f"known elements: {symbols_of(elements)}; remove the frame or train with this element"
        )
