from __future__ import annotations

import json
import re

import pytest

from bayrace.report.build import build_report
from bayrace.report.document import Code, Finding, Panel, Report, Section, Table, rounded
from bayrace.report.page import asset, number, render


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        ("C", "C"),
        (12, "12"),
        (0.0, "0"),
        (3.14159, "3.14"),
        (123.456, "123"),
        (0.99923, "0.99923"),
        (1 - 1e-9, "1.000000"),
        (-0.012345, "−0.0123"),
        (1.5e-7, "1.50e-07"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


def test_rounding_keeps_five_digits_and_no_nan():
    assert rounded([1.23456789, 2.0, float("nan"), 1e-12]) == [1.2346, 2, None, 1e-12]


def test_texts_are_escaped_and_cannot_end_the_data():
    nasty = "</script><b>&"
    table = Table("t", nasty, nasty, ("a", "b"), [(nasty, 1.0)])
    report = Report(
        title=nasty,
        subtitle=nasty,
        facts={nasty: nasty},
        findings=[Finding("good", nasty, nasty)],
        figures=[],
        sections=[Section("s", nasty, nasty, [table, Code(nasty)])],
        numbers={nasty: [nasty]},
    )
    page = render(report)
    assert nasty not in page
    assert "<b>" not in page
    embedded = re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(embedded)["numbers"] == {nasty: [nasty]}


def test_the_page_holds_everything_and_stays_small(make_judged, history):
    sets = [
        make_judged("cold", count=500, repeat=7, raw=2.0),
        make_judged("hot", "ood", count=500, repeat=7, scale=3.0, seed=1),
    ]
    assert sets[0].forces.size == 42_000
    report = build_report(sets, title="large", facts={}, histories={"run": history})
    page = render(report)
    assert len(page.encode()) < 3_000_000
    assert not re.search(r'(?:src|href)\s*=\s*"?(?!#|data:)[a-z]', page.split('id="data"')[0])
    assert "@import" not in asset("report.css")
    assert "url(" not in asset("report.css")
    for block in report.blocks():
        if isinstance(block, Panel | Table):
            assert page.count(f'<figure id="{block.key}"') == 1


def test_3dmol_comes_only_where_it_is_needed_and_with_its_licence(make_judged):
    marker = asset("3Dmol-min.js")[200:400]
    sets = [make_judged()]
    assert marker in render(build_report(sets, title="", facts={}))
    bare = Report("", "", {}, [], [], [])
    assert marker not in render(bare)
    assert "BSD-3-Clause" in asset("3Dmol-LICENSE.txt")
