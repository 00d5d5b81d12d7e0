"""What the report says and shows, for sets whose errors are known."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from bayrace.evaluate.metrics.calibration import calibration_error, central_mass
from bayrace.report.build import build_report
from bayrace.report.document import Panel, Structures, Table, short
from bayrace.report.page import asset
from bayrace.report.panels.accuracy import parity_panels
from bayrace.report.panels.dynamics import dynamics_panels
from bayrace.report.panels.ood import detections, roc_panel
from bayrace.report.panels.structures import worst_structures
from bayrace.report.panels.training import training_panels
from bayrace.report.panels.uncertainty import calibration_panels, spread_panels
from bayrace.report.summary import findings, key_figures
from bayrace.report.tables import element_table, score_name, type_table, uncertainty_tables


def headlines(sets):
    return {each.headline: each for each in findings(sets, detections(sets))}


def test_right_uncertainties_are_called_honest(make_judged):
    found = headlines([make_judged(count=400)])
    assert found["σ of the energies and forces of “cold” is honest."].verdict == "good"
    assert found["σ tells large errors from small ones."].verdict == "good"
    assert "Detection of unknown structures was not tested." in found


def test_wrong_uncertainties_are_called_so(make_judged):
    name = "σ of the energies and forces of “cold” is"
    small = headlines([make_judged(wrong=3.0)])[f"{name} too small."]
    assert small.verdict == "bad"
    judged = make_judged(wrong=3.0)
    ratio = judged.forces.rmse / np.sqrt(np.mean(judged.forces.std**2))
    assert f"and {ratio:.2f} times the predicted σ" in small.text
    assert ratio == pytest.approx(3.0, rel=0.1)
    assert "bayrace calibrate" in small.text
    large = headlines([make_judged(wrong=0.3)])[f"{name} too large."]
    assert large.verdict == "caution"
    assert "100 % of the energies and 100 % of the forces" in large.text
    after = headlines([make_judged(wrong=3.0, raw=1.0)])[f"{name} too small."]
    assert "bayrace calibrate" not in after.text


def with_sigma(judged, factors):
    """The same errors of forces, with σ times `factors` and intervals that follow."""
    forces, std = judged.forces, judged.forces.std * factors
    end = 1.6448536269514722 * std
    wide = replace(forces, std=std, low=forces.mean - end, high=forces.mean + end)
    return replace(judged, forces=wide)


@pytest.mark.parametrize(
    ("most", "few", "says"),
    [
        (0.6, 20.0, "too large on average, and yet its 90 % intervals are too narrow"),
        (2.2, 2.2, "too small on average, and yet its 90 % intervals are too wide"),
        (1.0, 20.0, "too large on average, but its 90 % intervals are right"),
        (0.6, 6.0, "right on average, but its 90 % intervals are too narrow"),
    ],
)
def test_coverage_and_average_may_disagree_and_each_says_what_it_says(make_judged, most, few, says):
    judged = make_judged()
    error = np.abs(judged.forces.error)
    rare = np.arange(error.size) % 50 == 0
    if "too small" in says:  # a few errors far beyond their σ, not a few σ
        mean = judged.forces.mean + np.where(rare, 40 * judged.forces.error, 0)
        judged = replace(judged, forces=replace(judged.forces, mean=mean))
    found = headlines([with_sigma(judged, np.where(rare, few, most))])
    finding = found[f"σ of the forces of “cold” is {says}."]
    share = "too few" if "narrow" in says else "too many" if "wide" in says else "as should be"
    assert f"in their 90 % intervals ({share})" in finding.text
    assert finding.verdict != "good"


def test_sigma_that_hardly_varies_is_not_blamed_for_not_ranking(make_judged):
    judged = make_judged(count=200)
    flat = judged.forces.std.mean() * np.random.default_rng(2).uniform(0.8, 1.2, judged.forces.size)
    error = flat * np.random.default_rng(3).normal(size=flat.size)
    forces = replace(judged.forces, mean=judged.forces.label + error, std=flat)
    found = headlines([replace(judged, forces=forces)])["σ varies too little to rank errors."]
    assert found.verdict == "note"
    shuffled = np.random.default_rng(4).permutation(judged.forces.std)
    wrong = replace(judged, forces=replace(judged.forces, std=shuffled))
    assert headlines([wrong])["σ hardly ranks the errors."].verdict == "caution"


def test_energies_and_forces_are_judged_apart(make_judged):
    right, wrong = make_judged(count=200), make_judged(count=200, wrong=3.0)
    found = headlines([replace(right, forces=wrong.forces)])
    assert found["σ of the energies of “cold” is honest."].verdict == "good"
    assert found["σ of the forces of “cold” is too small."].verdict == "bad"


def test_the_hardest_unknown_set_is_the_key_figure(make_judged):
    sets = [
        make_judged(),
        make_judged("easy", "ood", scale=20.0, seed=3),
        make_judged("hard", "ood", scale=1.3, seed=4),
    ]
    found = detections(sets)
    tile = key_figures(sets, found)[-1]
    best = max(each.auroc for each in found if each.name == "hard")
    assert (tile.label, tile.value, tile.detail) == ("AUROC", f"{best:.3f}", "unknown: hard")


def test_detection_is_judged_by_the_best_score(make_judged):
    sets = [make_judged(), make_judged("hot", "ood", scale=20.0, seed=3)]
    assert headlines(sets)["“hot” is recognised as unknown."].verdict == "good"
    alike = [make_judged(), make_judged("alike", "ood", seed=3)]
    assert headlines(alike)["“alike” is not recognised as unknown."].verdict == "bad"


def test_a_test_on_training_data_comes_first(make_judged):
    dirty = replace(make_judged(), seen={"train": 7, "test": 60})
    first = findings([dirty], [])[0]
    assert first.verdict == "bad"
    assert "7 of the 60 structures of “cold” were used for training" in first.text


def test_few_structures_are_pointed_out(make_judged):
    assert "Few structures." in headlines([make_judged(count=5)])
    assert "Few structures." not in headlines([make_judged(count=60)])


def test_a_potential_without_uncertainty_has_no_panels_of_it(make_judged):
    blind = [make_judged(wrong=0.0)]
    assert spread_panels(blind) == []
    assert calibration_panels(blind) == []
    assert uncertainty_tables(blind) == []
    assert headlines(blind)["No uncertainty is predicted."].verdict == "bad"
    keys = [section.key for section in build_report(blind, title="", facts={}).sections]
    assert keys == ["accuracy", "parts", "structures"]


def test_scatter_is_thinned_and_says_so(make_judged):
    sets = [make_judged(count=300), make_judged("hot", "ood", count=300, seed=1)]
    forces = parity_panels(sets)[1]
    drawn = [len(mark.x) for mark in forces.marks if mark.kind == "points"]
    assert drawn == [2500, 2500]
    assert "5000 of 7200 points are drawn" in forces.caption
    uneven = [make_judged(count=600), make_judged("few", count=25, seed=1)]
    drawn = [len(mark.x) for mark in parity_panels(uneven)[1].marks if mark.kind == "points"]
    assert drawn == [4700, 300]


def test_calibration_curves_and_bars_are_those_of_the_metric(make_judged):
    judged = make_judged(wrong=1.0, raw=3.0, count=200)
    energies, _, bars = calibration_panels([judged])
    after = next(mark for mark in energies.marks if mark.series == "cold")
    at_90 = list(after.x).index(90)
    assert after.y[at_90] == pytest.approx(100 * np.mean(judged.energy.inside))
    before = next(mark for mark in energies.marks if mark.series.endswith("before recalibration"))
    assert before.y[at_90] < after.y[at_90] - 20
    values = {mark.names[0]: mark.y[0] for mark in bars.marks}
    expected = calibration_error(central_mass(judged.raw_forces.pit))
    assert values["cold, forces, before recalibration"] == expected
    assert values["cold, forces"] < expected / 20


def test_errors_lie_between_the_bands_as_often_as_they_say(make_judged):
    judged = make_judged(count=400)
    panel = spread_panels([judged])[1]
    shares = []
    for band in (mark for mark in panel.marks if mark.kind == "band"):
        low, high = band.low[0] / band.x[0], band.high[0] / band.x[0]
        ratio = np.abs(judged.forces.error) / judged.forces.std
        shares.append(np.mean((ratio > low) & (ratio < high)))
    assert shares == pytest.approx([0.99, 0.90, 0.50], abs=0.03)
    assert (panel.x.scale, panel.y.scale, panel.x.unit) == ("log", "log", "meV/Å")


def test_roc_has_a_curve_for_each_score(make_judged):
    sets = [make_judged(), make_judged("hot", "ood", scale=2.0, seed=3)]
    panel = roc_panel(sets)
    assert len(panel.marks) == 3
    assert all(re.search(r"AUROC [01]\.\d{3}$", mark.series) for mark in panel.marks[1:])
    assert roc_panel(sets[:1]) is None
    assert roc_panel(sets[1:]) is None


def test_tables_by_element_and_type(make_judged):
    sets = [make_judged(types=("a", "b"), wrong=2.0)]
    elements = {row[1]: row for row in element_table(sets).rows}
    carbon = sets[0].forces.chosen(sets[0].forces.number == 6)
    assert elements["C"][4] == pytest.approx(1000 * carbon.rmse)
    assert elements["H"][2] == 120
    assert type_table([make_judged()]) is None
    rows = type_table(sets).rows
    assert [(row[1], row[2], row[3]) for row in rows[:2]] == [
        ("a", "energy", 30),
        ("a", "forces", 30),
    ]
    whole = sets[0].energy
    mean = sum(row[5] ** 2 * row[3] for row in rows if row[2] == "energy") / 60
    assert np.sqrt(mean) == pytest.approx(1000 * whole.rmse)


def test_names_of_scores():
    assert score_name("energy_total") == "σ of the energy / √atoms"
    assert score_name("forces_max_epistemic") == "σ of the forces, largest atom (epistemic)"


def test_the_worst_structures_are_the_worst(make_judged):
    judged = make_judged()
    shown = worst_structures([judged]).structures
    rmse = np.sqrt(np.mean(judged.forces.error.reshape(60, -1) ** 2, axis=1))
    assert [each.title for each in shown] == [f"cold, frame {n}" for n in np.argsort(-rmse)[:3]]
    assert shown[0].symbols == ["C", "O", "H", "H"]
    place = int(np.argmax(rmse))
    np.testing.assert_allclose(shown[0].error, 1000 * judged.force_error[4 * place : 4 * place + 4])
    huge = make_judged(count=2, repeat=600)
    assert worst_structures([huge]) is None


def test_structures_without_forces_are_sorted_by_energy(make_judged):
    judged = make_judged(count=10)
    blank = judged.forces.chosen(np.zeros(judged.forces.size, dtype=bool))
    nothing = np.full_like(judged.force_error, np.nan)
    energies = replace(judged, forces=blank, force_error=nothing)
    shown = worst_structures([energies]).structures
    assert shown[0].title == f"cold, frame {np.argmax(np.abs(judged.energy.error))}"
    assert shown[0].error is None
    json.dumps(build_report([energies], title="", facts={}).to_json(), allow_nan=False)


def test_training_curves_of_one_run_and_of_members(history):
    panels = {panel.key: panel for panel in training_panels({"run": history})}
    assert list(panels) == ["training-loss", "training-energy", "training-forces", "training-rate"]
    assert [mark.series for mark in panels["training-loss"].marks] == ["training", "validation"]
    assert panels["training-loss"].y.scale == "linear"  # it becomes negative
    assert panels["training-energy"].marks[0].y[-1] == pytest.approx(9 / 40)
    members = training_panels({"member 0": history, "member 1": history[:10]})
    assert [mark.series for mark in members[1].marks] == ["member 0", "member 1"]
    long = [{**history[0], "epoch": epoch} for epoch in range(1, 5001)]
    line = training_panels({"run": long})[1].marks[0]
    assert len(line.x) <= 600
    assert line.x[-1] == 5000
    assert training_panels({}) == []


def test_dynamics_without_a_spread_has_no_panel_of_it():
    panels = dynamics_panels(
        time=[0, 1, 2],
        potential_energy=[-1.0, -0.9, -1.1],
        temperature=[300, 310, 290],
        force_spread=[0, 0, 0],
    )
    assert [panel.key for panel in panels] == ["dynamics-temperature", "dynamics-energy"]
    np.testing.assert_allclose(panels[1].marks[0].y, [0, 100, -100])


def test_large_sets_are_thinned_for_the_download(make_judged):
    judged = make_judged(count=7000)
    found = build_report([judged], title="", facts={}).numbers["sets"]["cold"]
    assert found["count"] == 7000
    frames = found["structures"]["frame"]
    assert len(frames) == 6000
    np.testing.assert_allclose(
        found["structures"]["energy_std"], judged.energy.std[frames], rtol=1e-9
    )


def test_more_sets_than_colours(make_judged):
    sets = [make_judged(f"set {place}", count=3, seed=place) for place in range(8)]
    marks = parity_panels(sets)[0].marks
    assert [mark.to_json()["colour"] for mark in marks] == [0, 1, 2, 3, 4, 5, 6, 1, 2]


def test_the_report_is_json_and_knows_its_sets(make_judged, history):
    sets = [make_judged("hot", "ood", seed=1), make_judged("cold")]
    report = build_report(sets, title="T", facts={"model": "m"}, histories={"run": history})
    content = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert list(content["numbers"]["sets"]) == ["cold", "hot"]  # known ones first
    columns = content["numbers"]["sets"]["hot"]["structures"]
    np.testing.assert_allclose(columns["energy_label"], sets[0].energy.label, rtol=1e-9)
    assert columns["frame"] == list(range(60))
    blocks = report.blocks()
    keys = [block.key for block in blocks if isinstance(block, Panel | Table)]
    assert len(set(keys)) == len(keys)
    with pytest.raises(ValueError, match="no sets to report on"):
        build_report([], title="", facts={})


def test_the_summary_opens_with_where_it_can_be_used(make_judged):
    sets = [make_judged(), make_judged("hot", "ood", scale=3.0)]
    first = findings(sets, [])[0]
    names = [each.name for each in sets]
    assert first.headline.endswith(".")
    assert all(f"“{name}”" in first.headline for name in names)
    assert first.headline.startswith(("Usable for", "With care for", "Not for"))
    assert "of the size of the forces" in first.text


def test_thousands_have_no_exponent():
    assert [short(value) for value in (1036.4, 12345.6, 0.0, 0.01234)] == [
        "1036",
        "12346",
        "0",
        "0.0123",
    ]


def test_no_text_of_a_page_with_huge_errors_has_an_exponent(make_judged):
    """Legends, structures and shares still had them where the cards had not."""
    report = build_report([make_judged(wrong=100.0, scale=100.0)], title="", facts={})
    viewers = [each for each in report.blocks() if isinstance(each, Structures)]
    panels = [each for each in report.blocks() if isinstance(each, Panel)]
    texts = [
        *(f"{each.headline} {each.text}" for each in report.findings),
        *(f"{each.value} {each.detail}" for each in report.figures),
        *(mark.series for panel in panels for mark in panel.marks),
        *(each.detail for viewer in viewers for each in viewer.structures),
    ]
    assert len(texts) > 20
    assert [text for text in texts if re.search(r"\de\+\d", text)] == []


def test_licences_of_what_3dmol_holds():
    text = asset("3Dmol-LICENSE.txt")
    script = asset("3Dmol-min.js")
    for used, owner in (
        ("pako", "Vitaly Puzrin and Andrei Tuputcyn"),
        ("pako", "Jean-loup Gailly and Mark Adler"),
        ("IOBuffer", "Michaël Zasso"),
        ("NetCDFReader", "cheminfo"),
    ):
        assert used in script
        assert owner in text
