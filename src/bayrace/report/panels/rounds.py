"""Figures and tables about a loop: error against labels, exploration, choices, time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayrace.data.frame import symbols_of
from bayrace.report.document import Axis, Block, Cell, Mark, Panel, Structure, Structures, Table
from bayrace.report.panels.accuracy import MILLI
from bayrace.report.panels.structures import MOST_ATOMS
from bayrace.report.round import Round, Shown

STEPS = ("explore", "select", "label", "train", "evaluate")
REASONS = ("finished", "uncertain", "exploded")
NEWEST = "newest labels, before training"
_LATEST = 3  # rounds whose choices are listed
_VIEWED = 12  # structures in the viewer


def learning_panels(rounds: Sequence[Round]) -> list[Panel]:
    """Errors against labels."""
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
                    Axis("labels", whole=True),
                    Axis("RMSE", unit, "log"),
                    marks,
                )
            )
    return panels


def rounds_table(rounds: Sequence[Round]) -> Table:
    """Labels, structures and force errors of every round."""
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


def exploration_blocks(rounds: Sequence[Round]) -> list[Block]:
    """How uncertain runs were, how far they came and how they ended, round by round."""
    explored = [each for each in rounds if each.runs]
    if not explored:
        return []
    numbers = [each.number for each in explored]
    temperatures = sorted({run.temperature for each in explored for run in each.runs})
    spread, lengths = [], []
    for colour, kelvin in enumerate(temperatures, start=1):
        own = [[run for run in each.runs if run.temperature == kelvin] for each in explored]
        spread += _line(
            f"{kelvin:g} K",
            colour,
            numbers,
            [_median([run.forces_std for run in runs]) for runs in own],
        )
        times = [float(np.median([run.time for run in runs])) for runs in own]
        lengths += [
            Mark("line", f"{kelvin:g} K", colour, x=numbers, y=times),
            Mark("points", "", colour, x=numbers, y=times),
        ]
    panels = [
        Panel(
            "uncertainty",
            "Largest force σ",
            "Of any component and atom in a run; median over runs of a temperature.",
            Axis("round", whole=True),
            Axis("σ", "meV/Å", "log"),
            spread,
        ),
        Panel(
            "lengths",
            "How far runs came",
            "Until the rule stopped them, or to their end; median over runs of a temperature.",
            Axis("round", whole=True),
            Axis("time", "fs"),
            lengths,
        ),
    ]
    return [*panels, _endings(explored)]


def chosen_blocks(rounds: Sequence[Round], shown: Sequence[Shown]) -> list[Block]:
    """What was labelled in the last rounds, and why."""
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
            pick.why,
            f"{pick.temperature:g} K",
            pick.time,
            _milli(pick.forces_std),
            pick.risk,
            _milli(pick.forces_rmse),
            pick.use or "–",
            pick.start,
        ]
        for each in reversed(latest)
        for pick in each.chosen
    ]
    if not rows:
        return []
    caption = (
        "Force σ: the largest predicted one, meV/Å. Risk: of a force error beyond what the "
        "rule allows. Force error: RMSE of the structure before it was trained on, meV/Å."
    )
    title = "The last round" if len(latest) == 1 else f"The last {len(latest)} rounds"
    return [Table("chosen", title, caption, columns, rows), *_viewer(shown)]


def times_table(rounds: Sequence[Round]) -> Table:
    """Where the time went."""
    steps = [step for step in STEPS if any(step in each.seconds for each in rounds)]
    rows = [[each.number, *(each.seconds.get(step) for step in steps)] for each in rounds]
    return Table("times", "Seconds of each step", "", ("round", *steps), rows)


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
    return sum(run.reason == reason for run in each.runs)


def _viewer(shown: Sequence[Shown]) -> list[Structures]:
    small = [each for each in shown if len(each.frame.numbers) <= MOST_ATOMS][:_VIEWED]
    found = [
        Structure(
            title=f"choice {place}",
            detail=f"{each.pick.temperature:g} K, {each.pick.time:g} fs: {each.pick.why}",
            symbols=[symbols_of([number]) for number in each.frame.numbers],
            positions=each.frame.positions
            if each.frame.pbc.any()
            else each.frame.positions - each.frame.positions.mean(axis=0),
            cell=each.frame.cell if each.frame.pbc.any() else None,
            spread=MILLI * np.sqrt(np.mean(each.std**2, axis=1)) if each.std.any() else None,
            local=None,
            error=MILLI * each.error,
        )
        for place, each in enumerate(small, start=1)
    ]
    caption = (
        "The newest labels as the potential saw them before. Colour: predicted σ of the force on "
        "each atom; arrows: error of the force, prediction minus label."
    )
    return [Structures(caption, found)] if found else []


def _milli(value: float | None) -> float | None:
    return None if value is None else MILLI * value
