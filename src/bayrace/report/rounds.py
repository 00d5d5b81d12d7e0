"""The page of an active-learning loop: learning curve, uncertainty by round, what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import Frame, symbols_of
from bayrace.report.document import (
    Axis,
    Cell,
    Figure,
    Finding,
    Mark,
    Panel,
    Report,
    Section,
    Structure,
    Structures,
    Table,
)
from bayrace.report.panels.accuracy import MILLI
from bayrace.report.structures import MOST_ATOMS

Array = NDArray[np.float64]

STEPS = ("explore", "select", "label", "train", "evaluate")
REASONS = ("finished", "uncertain", "exploded")
NEWEST = "newest labels, before training"
_LATEST = 3  # rounds whose choices are listed
_VIEWED = 12  # structures in the viewer


@dataclass(frozen=True)
class Round:
    """One round; number 0 is the start. Units are eV, Å, fs and K."""

    number: int
    labels: int  # paid for so far, those of the start not counted
    failed: int  # structures of this round that have no label
    calls: int  # of the oracle, so far
    train: int  # structures
    valid: int
    errors: Mapping[str, Mapping[str, float | None]]  # test set; see `bayrace.loop.learn.errors`
    newest: Mapping[str, float | None] | None  # the same of the new labels, before training
    runs: Sequence[Mapping[str, Any]] = ()  # of the exploration, without what they visited
    chosen: Sequence[Mapping[str, Any]] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by step

    @property
    def uncertain(self) -> float | None:
        """Part of the runs that met an uncertain structure; None without runs."""
        if not self.runs:
            return None
        return sum(bool(run["uncertain"]) for run in self.runs) / len(self.runs)

    @property
    def judged(self) -> float | None:
        """RMSE of forces, eV/Å: of the worst test set, else of the newest labels."""
        sets = list(self.errors.values()) or ([self.newest] if self.newest else [])
        found = [each["forces_rmse"] for each in sets]
        return max((value for value in found if value is not None), default=None)


@dataclass(frozen=True, eq=False)
class Shown:
    """A structure of n atoms that was chosen, and its forces before it was trained on."""

    pick: Mapping[str, Any]  # one of `Round.chosen`
    frame: Frame
    error: Array  # (n, 3) eV/Å, prediction minus label
    std: Array  # (n, 3) eV/Å


def rounds_report(
    rounds: Sequence[Round],
    *,
    title: str,
    facts: Mapping[str, str],
    reason: str | None,
    shown: Sequence[Shown] = (),
) -> Report:
    """The page; `reason` says why the loop ended, None while it goes on.

    `shown` are structures of the last round with labels, for the 3D viewer.
    """
    last = rounds[-1]
    sections = [
        Section(
            "learning",
            "What did the labels buy?",
            "",
            [*_curves(rounds), _rounds_table(rounds)],
        ),
        *_explored(rounds),
        *_chosen(rounds, shown),
        Section("time", "Where did the time go?", "", [_times(rounds)]),
    ]
    return Report(
        title=title,
        subtitle=f"round {last.number}, {last.labels} labels",
        facts=facts,
        findings=[_ending(reason), *_progress(rounds)],
        figures=_figures(last),
        sections=sections,
        numbers={"rounds": [vars(each) for each in rounds]},
    )


def _ending(reason: str | None) -> Finding:
    if reason is None:
        return Finding("note", "It goes on.", "This page is written anew after every round.")
    return Finding("good", "It has ended.", f"{reason[0].upper()}{reason[1:]}.")


def _progress(rounds: Sequence[Round]) -> list[Finding]:
    found = []
    for name, errors in rounds[-1].errors.items():
        before, after = rounds[0].errors[name]["forces_rmse"], errors["forces_rmse"]
        if before is None or after is None or len(rounds) < 2:
            continue
        text = (
            f"{MILLI * before:.3g} meV/Å at the start, {MILLI * after:.3g} meV/Å after "
            f"{rounds[-1].labels} labels."
        )
        better = after < before
        headline = f"The force error on {name} has {'fallen' if better else 'not fallen'}."
        found.append(Finding("good" if better else "caution", headline, text))
    return found


def _figures(last: Round) -> list[Figure]:
    figures = [Figure("labels", str(last.labels), "", f"{last.calls} calls of the oracle")]
    for name, errors in last.errors.items():
        if errors["forces_rmse"] is not None:
            value = f"{MILLI * errors['forces_rmse']:.3g}"
            figures.append(Figure("force RMSE", value, "meV/Å", name))
    if last.uncertain is not None:
        ended = f"{sum(bool(run['uncertain']) for run in last.runs)} of {len(last.runs)}"
        figures.append(Figure("uncertain runs", ended, "", f"in round {last.number}"))
    return figures


def _curves(rounds: Sequence[Round]) -> list[Panel]:
    panels = []
    for key, quantity, unit in (("forces", "forces", "meV/Å"), ("energy", "energy", "meV")):
        marks: list[Mark] = []
        for colour, name in enumerate(rounds[-1].errors, start=1):
            known = [each for each in rounds if each.errors[name][f"{key}_rmse"] is not None]
            marks += _line(
                name,
                colour,
                [each.labels for each in known],
                [each.errors[name][f"{key}_rmse"] for each in known],
            )
        new = [each for each in rounds if each.newest and each.newest[f"{key}_rmse"] is not None]
        values = [each.newest[f"{key}_rmse"] for each in new if each.newest]
        paid = [rounds[each.number - 1].labels for each in new]
        marks += _line(NEWEST, len(rounds[-1].errors) + 1, paid, values, style="dashed")
        if marks:
            caption = "Against labels of the oracle that the potential was trained with."
            panels.append(
                Panel(
                    f"learning-{key}",
                    f"Error of {quantity}",
                    caption,
                    Axis("labels"),
                    Axis("RMSE", unit, "log"),
                    marks,
                )
            )
    return panels


def _line(
    name: str, colour: int, x: Sequence[float], y: Sequence[float | None], *, style: Any = ""
) -> list[Mark]:
    if not x:
        return []
    values = MILLI * np.array(y, dtype=np.float64)
    return [
        Mark("line", name, colour, x=x, y=values, style=style),
        Mark("points", "", colour, x=x, y=values),
    ]


def _rounds_table(rounds: Sequence[Round]) -> Table:
    sets = list(rounds[-1].errors)
    columns = ("round", "labels", "failed", "training", *sets, "newest", "uncertain runs")
    rows: list[list[Cell]] = []
    for each in rounds:
        forces = [_milli(each.errors[name]["forces_rmse"]) for name in sets]
        newest = _milli(each.newest["forces_rmse"]) if each.newest else None
        part = None if each.uncertain is None else f"{100 * each.uncertain:.0f} %"
        rows.append(
            [each.number, each.labels, each.failed, each.train, *forces, newest, part or "–"]
        )
    caption = (
        "RMSE of forces, meV/Å: of the test sets after training, of the newest labels before it. "
        "Failed: structures of the round that the oracle could not label."
    )
    return Table("rounds", "Rounds", caption, columns, rows)


def _explored(rounds: Sequence[Round]) -> list[Section]:
    explored = [each for each in rounds if each.runs]
    if not explored:
        return []
    numbers = [each.number for each in explored]
    temperatures = sorted({run["temperature"] for each in explored for run in each.runs})
    spread, lengths = [], []
    for colour, kelvin in enumerate(temperatures, start=1):
        own = [[run for run in each.runs if run["temperature"] == kelvin] for each in explored]
        spread += _line(
            f"{kelvin:g} K",
            colour,
            numbers,
            [_median([run["forces_std"] for run in runs]) for runs in own],
        )
        times = [float(np.median([run["time"] for run in runs])) for runs in own]
        lengths += [
            Mark("line", f"{kelvin:g} K", colour, x=numbers, y=times),
            Mark("points", "", colour, x=numbers, y=times),
        ]
    panels = [
        Panel(
            "uncertainty",
            "Largest force σ",
            "Of any component and atom in a run; median over runs of a temperature.",
            Axis("round"),
            Axis("σ", "meV/Å", "log"),
            spread,
        ),
        Panel(
            "lengths",
            "How far runs came",
            "Until the rule stopped them, or to their end; median over runs of a temperature.",
            Axis("round"),
            Axis("time", "fs"),
            lengths,
        ),
    ]
    return [Section("exploration", "What did exploration meet?", "", [*panels, _endings(explored)])]


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else float("nan")


def _endings(rounds: Sequence[Round]) -> Table:
    rows: list[list[Cell]] = [
        [each.number, len(each.runs), *(_count(each, reason) for reason in REASONS)]
        for each in rounds
    ]
    caption = "Finished: all steps done. Uncertain: stopped by the rule. Exploded: could not go on."
    return Table("endings", "How runs ended", caption, ("round", "runs", *REASONS), rows)


def _count(each: Round, reason: str) -> int:
    return sum(run["reason"] == reason for run in each.runs)


def _chosen(rounds: Sequence[Round], shown: Sequence[Shown]) -> list[Section]:
    latest = [each for each in rounds if each.chosen][-_LATEST:]
    columns = (
        "round",
        "why",
        "run at",
        "time, fs",
        "force σ",
        "risk",
        "force error",
        "use",
        "start",
    )
    rows: list[list[Cell]] = [
        [
            each.number,
            pick["why"],
            f"{pick['temperature']:g} K",
            pick["time"],
            _milli(pick["forces_std"]),
            pick["risk"],
            _milli(pick.get("forces_rmse")),
            pick.get("use", "–"),
            pick["start"],
        ]
        for each in reversed(latest)
        for pick in each.chosen
    ]
    if not rows:
        return []
    caption = (
        "Force σ: the largest predicted one, meV/Å. Risk: of a force error beyond the bound of the "
        "rule. Force error: RMSE of the structure before it was trained on, meV/Å."
    )
    return [
        Section(
            "chosen",
            "What was chosen, and why?",
            "",
            [
                Table("chosen", f"The last {len(latest)} round(s)", caption, columns, rows),
                *_viewer(shown),
            ],
        )
    ]


def _viewer(shown: Sequence[Shown]) -> list[Structures]:
    small = [each for each in shown if len(each.frame.numbers) <= MOST_ATOMS][:_VIEWED]
    found = [
        Structure(
            title=f"choice {place}",
            detail=f"{each.pick['temperature']:g} K, {each.pick['time']:g} fs: {each.pick['why']}",
            symbols=[symbols_of([number]) for number in each.frame.numbers],
            positions=each.frame.positions
            if each.frame.pbc.any()
            else each.frame.positions - each.frame.positions.mean(axis=0),
            cell=each.frame.cell if each.frame.pbc.any() else None,
            spread=MILLI * np.sqrt(np.mean(each.std**2, axis=1)) if each.std.any() else None,
            error=MILLI * each.error,
        )
        for place, each in enumerate(small, start=1)
    ]
    caption = (
        "The newest labels as the potential saw them before. Colour: predicted σ of the force on "
        "each atom; arrows: error of the force, prediction minus label."
    )
    return [Structures(caption, found)] if found else []


def _times(rounds: Sequence[Round]) -> Table:
    steps = [step for step in STEPS if any(step in each.seconds for each in rounds)]
    rows = [[each.number, *(each.seconds.get(step) for step in steps)] for each in rounds]
    return Table("times", "Seconds of each step", "", ("round", *steps), rows)


def _milli(value: float | None) -> float | None:
    return None if value is None else MILLI * value
