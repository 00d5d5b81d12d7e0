"""Old names of modules say where their contents are; new ones exist."""

from __future__ import annotations

import importlib
import re

import pytest

import bayrace


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("from bayrace import run", "bayrace.workflow.train"),
        ("import bayrace.types", "bayrace.core"),
        ("from bayrace.ensemble import train_members", "bayrace.workflow.ensemble"),
        ("from bayrace.metrics.ood import detections", "bayrace.evaluate.metrics"),
        ("from bayrace.report.evaluation import evaluate", "bayrace.evaluate.evaluation"),
        ("from bayrace.active.select import select", "bayrace.select"),
    ],
)
def test_old_modules_say_where_they_are(statement: str, place: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"has moved: see .*{re.escape(place)}"):
        exec(statement)


@pytest.mark.parametrize("places", bayrace._MOVED.values())
def test_their_places_exist(places: str) -> None:
    for place in re.findall(r"[\w.]+", places.replace(" and ", " ")):
        importlib.import_module(place)


def test_other_names_fail_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'bayrace\.nothing'"):
        importlib.import_module("bayrace.nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from bayrace import nothing")
