"""The page of an active-learning loop: learning curve, uncertainty by round, what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from bayrace.report.document import Block, Figure, Finding, Report, Section, Verdict, short
from bayrace.report.panels.accuracy import MILLI
from bayrace.report.panels.rounds import (
    chosen_blocks,
    exploration_blocks,
    learning_panels,
    rounds_table,
    times_table,
)
from bayrace.report.round import Ending, Round, Shown

_HARDLY = 0.02  # of an error: a smaller change is none


def rounds_report(
    rounds: Sequence[Round],
    *,
    title: str,
    facts: Mapping[str, str],
    ending: Ending | None,
    shown: Sequence[Shown] = (),
) -> Report:
    """The page; `ending` says why the loop ended, None while it goes on.

    `shown` are structures of the last round with labels, for the 3D viewer.
    """
    last = rounds[-1]
    parts: list[tuple[str, str, Sequence[Block]]] = [
        ("learning", "What did the labels buy?", [*learning_panels(rounds), rounds_table(rounds)]),
        ("exploration", "What did exploration meet?", exploration_blocks(rounds)),
        ("chosen", "What was chosen, and why?", chosen_blocks(rounds, shown)),
        ("time", "Where did the time go?", [times_table(rounds)]),
    ]
    return Report(
        title=title,
        subtitle=f"round {last.number}, {last.labels} labels",
        facts=facts,
        findings=[_ending(ending), *_progress(rounds)],
        figures=_figures(last),
        sections=[Section(key, head, "", blocks) for key, head, blocks in parts if blocks],
        numbers={"rounds": [asdict(each) for each in rounds]},
    )


def _ending(ending: Ending | None) -> Finding:
    if ending is None:
        return Finding("note", "It goes on.", "This page is written anew after every round.")
    headline = "It had to give up." if ending.verdict == "bad" else "It has ended."
    return Finding(ending.verdict, headline, f"{ending.reason[0].upper()}{ending.reason[1:]}.")


def _progress(rounds: Sequence[Round]) -> list[Finding]:
    found = []
    for name, errors in rounds[-1].errors.items():
        before, after = rounds[0].errors[name]["forces_rmse"], errors["forces_rmse"]
        if before is None or after is None or len(rounds) < 2:
            continue
        text = (
            f"{short(MILLI * before)} meV/Å at the start, {short(MILLI * after)} meV/Å after "
            f"{rounds[-1].labels} labels."
        )
        verdict, word = _change(before, after)
        found.append(Finding(verdict, f"The force error on {name} has {word}.", text))
    return found


def _change(before: float, after: float) -> tuple[Verdict, str]:
    """What to say of an error that was `before` and is `after`."""
    if abs(after - before) <= _HARDLY * before:
        return "caution", "hardly changed"
    return ("good", "fallen") if after < before else ("caution", "risen")


def _figures(last: Round) -> list[Figure]:
    figures = [Figure("labels", str(last.labels), "", f"{last.calls} calls of the oracle")]
    for name, errors in last.errors.items():
        if errors["forces_rmse"] is not None:
            value = short(MILLI * errors["forces_rmse"])
            figures.append(Figure("force RMSE", value, "meV/Å", name))
    if last.uncertain is not None:
        ended = f"{sum(run.uncertain for run in last.runs)} of {len(last.runs)}"
        figures.append(Figure("uncertain runs", ended, "", f"in round {last.number}"))
    return figures
