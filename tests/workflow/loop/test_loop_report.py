"""The page of a loop, from rounds that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bayrace.data.embedded import embedded_frames
from bayrace.report.document import Panel, Report, Structures, Table
from bayrace.report.page import render
from bayrace.report.round import Ending, Pick, Round, RunSummary, Shown
from bayrace.report.rounds import rounds_report

PICK = Pick(
    why="bald-force 1.5, number 1 of 40",
    by="bald-force",
    score=1.5,
    start="start.xyz, frame 3",
    temperature=1000.0,
    step=25,
    time=12.5,
    forces_std=0.4,
    risk=0.2,
    use="training",
    forces_rmse=0.3,
)


def errors(forces: float) -> dict[str, float | None]:
    return {"forces_rmse": forces, "energy_rmse": 2 * forces}


def made(number: int) -> Round:
    """Errors of 0.4, 0.2, 0.1 eV/Å with 0, 5, 10 labels; every second run is uncertain."""
    runs = [
        RunSummary(
            start="start.xyz, frame 0",
            temperature=kelvin,
            seed=1,
            reason="uncertain" if uncertain else "finished",
            message="",
            steps=40,
            time=20.0 if uncertain else 100.0,
            forces_std=0.5 / number if number else None,
            risk=None,
            uncertain=uncertain,
            visits=4,
        )
        for kelvin in (300.0, 1000.0)
        for uncertain in (True, False)
    ]
    return Round(
        number=number,
        labels=5 * number,
        failed=0,
        calls=5 * number,
        train=20 + 5 * number,
        valid=4,
        errors={"hot": errors(0.4 / 2**number)},
        newest=errors(0.8 / 2**number) if number else None,
        runs=runs if number else (),
        chosen=[PICK] if number else (),
        seconds={"train": 3.0, "evaluate": 1.0} | ({"explore": 2.0} if number else {}),
    )


def page(rounds: list[Round], **options: Any) -> Report:
    values: dict[str, Any] = {"title": "t", "facts": {"oracle": "o"}, "ending": None}
    return rounds_report(rounds, **values | options)


def block(report: Report, key: str) -> Any:
    (found,) = [
        each for each in report.blocks() if isinstance(each, Panel | Table) and each.key == key
    ]
    return found


def test_numbers_are_where_they_belong() -> None:
    report = page([made(0), made(1), made(2)], ending=Ending("2 rounds are done", "note"))
    hot, _, newest, _ = block(report, "learning-forces").marks
    np.testing.assert_allclose(hot.x, [0, 5, 10])
    np.testing.assert_allclose(hot.y, [400, 200, 100])  # meV/Å
    np.testing.assert_allclose(newest.x, [0, 5])  # predicted with the labels before
    np.testing.assert_allclose(newest.y, [400, 200])
    cold = block(report, "uncertainty").marks[0]
    assert cold.series == "300 K"
    np.testing.assert_allclose(cold.x, [1, 2])
    np.testing.assert_allclose(cold.y, [500, 250])
    np.testing.assert_allclose(block(report, "lengths").marks[0].y, [60, 60])  # median, fs
    assert block(report, "endings").rows == [[1, 4, 2, 2, 0], [2, 4, 2, 2, 0]]
    assert [row[0] for row in block(report, "chosen").rows] == [2, 1]
    assert block(report, "times").columns == ("round", "explore", "train", "evaluate")
    assert report.findings[0].text == "2 rounds are done."
    assert report.findings[1].verdict == "good"
    assert "400 meV/Å at the start, 100 meV/Å after 10 labels" in report.findings[1].text


def test_errors_that_rise_are_not_praised() -> None:
    worse = replace(made(1), errors={"hot": errors(0.5)})
    finding = page([made(0), worse]).findings[1]
    assert (finding.verdict, finding.headline) == ("caution", "The force error on hot has risen.")


def test_errors_that_stay_are_not_praised() -> None:
    """2664.3 at the start and 2664.1 after six labels was "fallen", and good."""
    first = replace(made(0), errors={"hot": errors(2.6643)})
    last = replace(made(1), errors={"hot": errors(2.6641)})
    finding = page([first, last]).findings[1]
    assert (finding.verdict, finding.headline[-15:]) == ("caution", "hardly changed.")


@pytest.mark.parametrize("count", [1, 2])
def test_pages_of_few_rounds(count: int) -> None:
    rounds = [made(number) for number in range(count)]
    text = render(page(rounds))
    assert "It goes on." in text
    assert ('id="chosen"' in text) == (count > 1)
    bare = [replace(each, errors={}, newest=None) for each in rounds]
    assert "learning-forces" not in render(page(bare))


def test_runs_that_exploded_at_once() -> None:
    lost = [replace(run, forces_std=None, reason="exploded") for run in made(1).runs]
    report = page([made(0), replace(made(1), runs=lost)])
    assert block(report, "endings").rows == [[1, 4, 0, 0, 4]]
    render(report)


def test_structures_with_their_errors() -> None:
    frame = embedded_frames("ethanol-hot")[0]
    std = np.full((9, 3), 0.2)
    error = np.zeros((9, 3))
    error[2, 1] = 0.3
    report = page([made(0), made(1)], shown=[Shown(PICK, frame, error, std)])
    (viewer,) = [each for each in report.blocks() if isinstance(each, Structures)]
    (shown,) = viewer.structures
    assert shown.symbols[:3] == ["C", "C", "O"]
    assert shown.spread == pytest.approx(200.0)  # meV/Å
    assert shown.error[2, 1] == pytest.approx(300.0)
    assert "bald-force 1.5" in shown.detail
    assert "3Dmol" in render(report)
