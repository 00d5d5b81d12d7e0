"""The page in headless Chromium: what is drawn, what is asked for, what can be downloaded."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from bayrace.report.build import build_report
from bayrace.report.document import Axis, Mark, Panel, Report, Section
from bayrace.report.page import render

FACTS = {"model": "somewhere/model.bayrace", "elements": "H, C, O"}
EXPECTED = (
    "parity-energy",
    "parity-forces",
    "spread-energy",
    "spread-forces",
    "calibration-energy",
    "calibration-forces",
    "calibration-error",
    "intervals-1",
    "intervals-2",
    "histogram-energy_total",
    "histogram-forces_mean_total",
    "roc",
    "training-loss",
    "training-energy",
    "training-forces",
    "training-rate",
)
SHAPES = ".marks path, .marks rect, .marks circle"


@pytest.fixture(scope="module")
def sets(make_judged):
    cold = make_judged("cold", raw=3.0, types=("even", "odd"))
    hot = make_judged("1000 K, <hot>", "ood", wrong=2.0, scale=3.0, raw=1.0, seed=5)
    return [cold, hot]


@pytest.fixture(scope="module")
def report(sets, history):
    return build_report(sets, title="A <title>", facts=FACTS, histories={"run": history})


@pytest.fixture(scope="module")
def path(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(report), encoding="utf-8")
    return path


def test_every_figure_is_drawn_without_complaints_or_requests(visit, path, report):
    seen = visit(path, webgl=True)
    page = seen.page
    keys = [block.key for block in report.blocks() if isinstance(block, Panel)]
    assert sorted(keys) == sorted(EXPECTED)
    for key in keys:
        chart = page.locator(f'[data-panel="{key}"] svg')
        assert chart.count() == 1, key
        assert chart.locator(SHAPES).count() >= 1, key
        assert chart.locator(".x-label").text_content().strip(), key
        assert chart.locator(".tick").count() >= 3, key
        if key != "calibration-error":
            assert chart.locator(".y-label").text_content().strip(), key
            assert chart.locator(".tick").count() >= 5, key
        assert "NaN" not in chart.evaluate("node => node.outerHTML"), key
    assert seen.complaints == []
    assert seen.requests == []
    assert page.title() == "A <title>"


def test_complaints_and_requests_are_noticed(visit, path, tmp_path):
    bad = tmp_path / "bad.html"
    spoilt = '<img src="http://192.0.2.1/x.png"><script>console.error("oh")</script></body>'
    bad.write_text(path.read_text(encoding="utf-8").replace("</body>", spoilt), encoding="utf-8")
    seen = visit(bad)
    assert seen.requests == ["http://192.0.2.1/x.png"]
    assert "oh" in seen.complaints


def test_marks_stand_where_their_numbers_are(visit, path):
    """The two ends of the ideal line of a calibration curve are corners of the frame."""
    page = visit(path).page
    line = '[data-panel="calibration-energy"] .marks .line.dashed'
    frame = page.locator('[data-panel="calibration-energy"] .axes .axis').get_attribute("d")
    left, top, bottom, right = (
        float(n) for n in frame.replace("M", "").replace("V", " ").replace("H", " ").split()
    )
    x0, y0, x1, y1 = (
        float(n)
        for n in page.locator(line).get_attribute("d").replace("M", "").replace("L", " ").split()
    )
    assert (x0, y0, x1, y1) == pytest.approx((left, bottom, right, top), abs=0.1)


def test_points_are_all_drawn(visit, path, sets):
    page = visit(path).page
    drawn = page.locator('[data-panel="parity-energy"] .marks .points').evaluate_all(
        "nodes => nodes.map(n => n.getAttribute('d').split('M').length - 1).reduce((a, b) => a + b)"
    )
    assert drawn == sum(each.energy.size for each in sets)
    crosses = page.locator('[data-panel="intervals-2"] .outside').get_attribute("d")
    assert crosses.count("m0 -6") == int(np.sum(~sets[1].energy.inside))


def test_the_theme_follows_the_system_and_the_button(visit, path):
    colours = """() => ['body', 'svg .points.c1', 'svg .tick'].map(s => {
        const style = getComputedStyle(document.querySelector(s));
        return [style.backgroundColor, style.stroke, style.fill].join();
    })"""
    light = visit(path, scheme="light").page
    dark = visit(path, scheme="dark").page
    by_day, by_night = light.evaluate(colours), dark.evaluate(colours)
    assert all(a != b for a, b in zip(by_day, by_night, strict=True))
    light.click("#theme")
    assert light.evaluate(colours) == by_night
    light.click("#theme")
    assert light.evaluate(colours) == by_day
    dark.click("#theme")
    assert dark.evaluate(colours) == by_day


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(visit, path, scheme):
    """WCAG AA: contrast of at least 4.5 for texts, 3 for the marks of sets, in both themes."""
    page = visit(path, scheme=scheme).page
    rgb = """name => { const probe = document.body.appendChild(document.createElement('i'));
        probe.style.color = `var(${name})`; const text = getComputedStyle(probe).color;
        probe.remove(); return text.match(/[0-9]+/g).slice(0, 3).map(Number); }"""

    def luminance(name):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (part / 255 for part in page.evaluate(rgb, name))
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one, other):
        low, high = sorted([luminance(one), luminance(other)])
        return (high + 0.05) / (low + 0.05)

    for name in ("--ink", "--muted", "--accent"):
        assert contrast(name, "--panel") >= 4.5, name
        assert contrast(name, "--paper") >= 4.5, name
    for verdict in ("--good", "--caution", "--bad", "--note"):
        assert contrast(verdict, f"{verdict}-bg") >= 4.5, verdict
    for place in range(1, 7):
        assert contrast(f"--c{place}", "--panel") >= 3.0, place


def test_a_phone_needs_no_sideways_scrolling(visit, path):
    seen = visit(path, width=360)
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    widths = page.locator(".chart svg").evaluate_all("nodes => nodes.map(n => n.clientWidth)")
    assert len(widths) == len(EXPECTED)
    assert max(widths) <= 340
    sizes = page.locator("svg .tick").evaluate_all(
        "nodes => nodes.map(n => parseFloat(getComputedStyle(n).fontSize))"
    )
    assert min(sizes) >= 11
    assert seen.complaints == []


def test_figures_follow_the_width_of_the_window(visit, path):
    page = visit(path).page
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function("document.querySelector('#roc svg').clientWidth < 480")


def test_downloads_hold_the_numbers_of_the_report(visit, path, report, sets):
    seen = visit(path)
    everything = json.loads(seen.download("#download-json"))
    assert everything == json.loads(json.dumps(report.to_json()))
    rows = list(csv.DictReader(io.StringIO(seen.download("#download-csv"))))
    assert [row["set"] for row in rows] == ["cold"] * 60 + ["1000 K, <hot>"] * 60
    np.testing.assert_allclose([float(row["energy_std"]) for row in rows[:60]], sets[0].energy.std)
    points = list(csv.DictReader(io.StringIO(seen.download("[data-csv='spread-energy']"))))
    drawn = [float(p["x"]) for p in points if p["mark"] == "points" and p["series"] == "cold"]
    np.testing.assert_allclose(drawn, 1000 * sets[0].energy.std, rtol=1e-4)
    table = list(csv.DictReader(io.StringIO(seen.download("[data-csv='elements']"))))
    assert [row["element"] for row in table] == ["H", "C", "O"] * 2
    svg = seen.download("[data-svg='roc']")
    assert svg.startswith("<svg")
    assert "var(" not in svg  # the colours are written out
    assert seen.complaints == []


def test_points_say_who_they_are(visit, path, sets):
    page = visit(path).page
    chart = page.locator('[data-panel="intervals-1"] svg')
    chart.scroll_into_view_if_needed()
    first = chart.locator(".inside").get_attribute("d").split("h0")[0]
    x, y = (float(number) for number in first.removeprefix("M").split())
    assert not page.locator("#tip").is_visible()
    chart.hover(position={"x": x, "y": y})
    energy = sets[0].energy
    place = int(np.flatnonzero(energy.inside)[0])
    text = page.inner_text("#tip").splitlines()
    assert text[:2] == ["cold", f"frame {place}"]
    assert text[2] == f"reference − prediction: {_shown(-1000 * energy.error[place])} meV"


def _shown(value):
    return f"{float(f'{value:.4g}'):g}".replace("-", "−")


def test_the_order_of_intervals_can_be_changed(visit, path):
    page = visit(path).page
    bars = '[data-panel="intervals-1"] .interval'
    button = page.locator("#intervals-1 .tools button").first
    before = page.locator(bars).get_attribute("d")
    assert button.inner_text() == "order: sorted by σ"
    button.click()
    assert button.inner_text() == "order: file order"
    after = page.locator(bars).get_attribute("d")
    assert before != after
    assert before.count("M") == after.count("M")
    button.click()
    assert page.locator(bars).get_attribute("d") == before


def test_structures_are_shown_in_three_dimensions(visit, path):
    seen = visit(path, width=480, webgl=True)
    page = seen.page
    assert page.evaluate("bayraceReport.viewer.flat") is False
    assert page.evaluate("bayraceReport.viewer.atoms()") == 4
    assert page.locator("#viewer canvas").count() >= 1
    assert page.locator("#atoms tbody tr").count() == 4
    page.click("[data-structure='4']")
    assert "1000 K, <hot>" in page.inner_text("[data-structure='4']")
    assert page.get_attribute("[data-structure='4']", "aria-selected") == "true"
    page.uncheck("#arrows")
    page.uncheck("#labels")
    assert "meV/Å" in page.inner_text("#viewer-legend span:nth-child(4)")
    page.check("#local")
    assert page.inner_text("#viewer-legend span:first-child") == "σ of atomic energies"
    assert page.inner_text("#viewer-legend span:nth-child(4)").endswith(" meV")
    page.click("#theme")
    assert seen.complaints == []


def test_without_webgl_structures_are_drawn_flat(visit, path):
    seen = visit(path)
    page = seen.page
    assert page.evaluate("bayraceReport.viewer.flat") is True
    assert page.evaluate("bayraceReport.viewer.atoms()") == 4
    assert "no WebGL" in page.inner_text(".fallback")
    assert page.locator("#viewer .atom-label").count() == 4
    page.click("[data-structure='1']")
    assert page.locator("#viewer circle").count() == 4
    assert seen.complaints == []


def test_a_potential_without_uncertainty(visit, make_judged, tmp_path):
    blind = [make_judged("cold", wrong=0.0), make_judged("hot", "ood", wrong=0.0, seed=2)]
    path = tmp_path / "blind.html"
    path.write_text(render(build_report(blind, title="blind", facts=FACTS)), encoding="utf-8")
    seen = visit(path)
    assert "No uncertainty is predicted." in seen.page.inner_text("#summary")
    assert seen.page.locator(".chart svg").count() == 2
    assert "No force uncertainty is predicted." in seen.page.inner_text("#viewer-legend")
    assert seen.complaints == []
    assert seen.requests == []


def test_periodic_structures_have_their_cell(visit, make_judged, tmp_path):
    path = tmp_path / "periodic.html"
    sets = [make_judged("bulk", periodic=True, count=5)]
    path.write_text(render(build_report(sets, title="bulk", facts=FACTS)), encoding="utf-8")
    seen = visit(path, webgl=True)
    assert seen.page.evaluate("bayraceReport.viewer.atoms()") == 4
    assert seen.complaints == []


def test_nothing_is_cut_off_on_a_laptop(visit, path):
    page = visit(path, width=1280).page
    boxes = page.locator(".grid .table .scroll")
    assert boxes.count() >= 1
    for place in range(boxes.count()):
        inside, room = boxes.nth(place).evaluate("node => [node.scrollWidth, node.clientWidth]")
        assert inside <= room
    for value in page.locator(".tile .value").all():
        lines = value.evaluate(
            "n => n.getBoundingClientRect().height / parseFloat(getComputedStyle(n).lineHeight)"
        )
        assert lines < 1.5
        assert value.evaluate("n => n.scrollWidth <= n.clientWidth")


def test_rounds_and_epochs_are_whole(visit, tmp_path):
    panel = Panel(
        "p", "t", "", Axis("round", whole=True), Axis("y"), [Mark("line", x=[1, 2], y=[3, 4])]
    )
    page = Report("t", "", {}, [], [], [Section("s", "s", "", [panel])], {})
    file = tmp_path / "rounds.html"
    file.write_text(render(page), encoding="utf-8")
    ticks = (
        visit(file).page.locator('[data-panel="p"] .tick[text-anchor="middle"]').all_text_contents()
    )
    assert ticks == ["1", "2"]


def test_the_last_number_of_an_axis_is_not_cut_off(visit, tmp_path):
    axis = Axis("σ", low=0, high=100_000)
    panel = Panel("p", "t", "", axis, Axis("y"), [Mark("line", x=[1, 2], y=[3, 4])])
    page = Report("t", "", {}, [], [], [Section("s", "s", "", [panel])], {})
    file = tmp_path / "edge.html"
    file.write_text(render(page), encoding="utf-8")
    last = visit(file).page.locator('[data-panel="p"] .tick[text-anchor="middle"]').last
    beyond = """node => node.getBoundingClientRect().right
        - node.ownerSVGElement.getBoundingClientRect().right"""
    assert "100" in last.text_content()
    assert last.evaluate(beyond) <= 0
