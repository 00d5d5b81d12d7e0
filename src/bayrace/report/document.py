"""What a report is made of: sections of text, figures and tables, as plain frozen data.

Nothing here knows potentials or HTML. `page.render` turns a Report into one file; a figure is a
description (axes and marks) that assets/chart.js draws in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["points", "line", "band", "bars", "columns", "intervals", "diagonal"]
Scale = Literal["linear", "log", "names"]
Verdict = Literal["good", "caution", "bad", "note"]
Cell = str | float | int | None
Values = Sequence[float] | NDArray[Any]
COLOURS = 6  # that report.css has for sets; more sets use them again
INK = 0  # colour of what belongs to no set; 1, 2, ... are the colours of the sets


@dataclass(frozen=True)
class Axis:
    """One axis; limits that are None follow the marks."""

    label: str
    unit: str = ""
    scale: Scale = "linear"
    low: float | None = None
    high: float | None = None
    whole: bool = False  # counts things: no ticks between whole numbers


@dataclass(frozen=True, eq=False)
class Mark:
    """Numbers drawn in one way; which arrays a kind needs is said beside them."""

    kind: Kind
    series: str = ""  # what the legend says; nothing is listed where it is empty
    colour: int = INK
    x: Values = ()  # points, line, band, intervals; of bars: the edges, one more than y
    y: Values = ()  # points, line, bars, columns; of intervals: what should lie inside
    low: Values = ()  # band, intervals
    high: Values = ()  # band, intervals
    names: Sequence[str] = ()  # of points, columns and intervals, for tooltips and labels
    other_x: Values = ()  # of intervals: the places in the panel's second order
    style: Literal["", "dashed", "thin", "dots", "faint"] = ""
    fit: bool = True  # whether limits of the axes follow this mark

    def to_json(self) -> dict[str, Any]:
        """Only what is set, numbers with five significant digits."""
        arrays = ("x", "y", "low", "high", "other_x")
        colour = self.colour and (self.colour - 1) % COLOURS + 1
        content: dict[str, Any] = {"kind": self.kind, "series": self.series, "colour": colour}
        content |= {name: rounded(getattr(self, name)) for name in arrays if _size(self, name)}
        if len(self.names):
            content["names"] = list(self.names)
        if self.style:
            content["style"] = self.style
        if not self.fit:
            content["fit"] = False
        return content


@dataclass(frozen=True, eq=False)
class Panel:
    """One figure."""

    key: str  # of the HTML element and of downloads
    title: str
    caption: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    square: bool = False  # equal limits on both axes and a square frame
    orders: tuple[str, str] | None = None  # names of two orders of the intervals along x
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """What chart.js draws."""
        return {
            "key": self.key,
            "title": self.title,
            "x": vars(self.x),
            "y": vars(self.y),
            "square": self.square,
            "orders": self.orders,
            "marks": [mark.to_json() for mark in self.marks],
        }


@dataclass(frozen=True)
class Table:
    """Rows of texts and numbers; None is a dash."""

    key: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def to_json(self) -> dict[str, Any]:
        """All digits."""
        rows = [[_finite(cell) for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True)
class Finding:
    """One sentence a reader should take away."""

    verdict: Verdict
    headline: str
    text: str


@dataclass(frozen=True)
class Figure:
    """A number worth being large, at the top."""

    label: str
    value: str
    unit: str
    detail: str


@dataclass(frozen=True, eq=False)
class Structure:
    """A structure for the 3D viewer, with n atoms."""

    title: str
    detail: str
    symbols: Sequence[str]
    positions: NDArray[np.float64]  # (n, 3) Å, around the origin where there is no cell
    cell: NDArray[np.float64] | None  # (3, 3) Å, rows are lattice vectors
    spread: NDArray[np.float64] | None  # (n,) predicted force σ, meV/Å; None if none is predicted
    local: NDArray[np.float64] | None  # (n,) σ of the energy of each atom, meV; None likewise
    error: NDArray[np.float64] | None  # (n, 3) force error, meV/Å

    def to_json(self) -> dict[str, Any]:
        """What viewer.js draws."""
        return {
            "title": self.title,
            "detail": self.detail,
            "symbols": list(self.symbols),
            "positions": [rounded(row) for row in self.positions],
            "cell": None if self.cell is None else [rounded(row) for row in self.cell],
            "spread": None if self.spread is None else rounded(self.spread),
            "local": None if self.local is None else rounded(self.local),
            "error": None if self.error is None else [rounded(row) for row in self.error],
        }


@dataclass(frozen=True)
class Structures:
    """The place of the 3D viewer."""

    caption: str
    structures: Sequence[Structure]


@dataclass(frozen=True)
class Code:
    """Lines to be copied."""

    text: str


Block = Panel | Table | Structures | Code


@dataclass(frozen=True)
class Section:
    """A heading, a text and what belongs to it."""

    key: str
    title: str
    text: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """A whole page."""

    title: str
    subtitle: str
    facts: Mapping[str, str]  # where the numbers come from
    findings: Sequence[Finding]
    figures: Sequence[Figure]
    sections: Sequence[Section]
    numbers: Mapping[str, Any] = field(default_factory=dict)  # for the download only

    def blocks(self) -> list[Block]:
        """Of all sections."""
        return [block for section in self.sections for block in section.blocks]

    def to_json(self) -> dict[str, Any]:
        """What the page embeds: everything that is drawn, and everything to download."""
        blocks = self.blocks()
        panels = [block.to_json() for block in blocks if isinstance(block, Panel)]
        tables = {block.key: block.to_json() for block in blocks if isinstance(block, Table)}
        shown = [
            each for block in blocks if isinstance(block, Structures) for each in block.structures
        ]
        return {
            "title": self.title,
            "facts": dict(self.facts),
            "findings": [vars(finding) for finding in self.findings],
            "numbers": _clean(self.numbers),
            "tables": tables,
            "panels": panels,
            "structures": [each.to_json() for each in shown],
        }


def rounded(values: Values, *, digits: int = 5) -> list[float | None]:
    """Floats with so many significant digits, so that the page stays small; nan is None."""
    return [_round(float(value), digits) for value in values]


def _round(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _size(mark: Mark, name: str) -> int:
    return len(getattr(mark, name))


def _finite(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _clean(value: Any) -> Any:
    """JSON-able without nan, which JSON does not know."""
    if isinstance(value, Mapping):
        return {str(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    if isinstance(value, np.ndarray):
        return _clean(value.tolist())
    if isinstance(value, np.generic):
        return _clean(value.item())
    return _finite(value)


def short(value: float, digits: int = 3) -> str:
    """So many significant digits, without an exponent."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
