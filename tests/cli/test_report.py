from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.cli.report import default_title, named_sources
from bayrace.potential.potential import Potential
from bayrace.report.provenance import read_histories


def embedded(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))


def test_a_report_has_the_numbers_of_evaluate(bayrace, model, data, tmp_path):
    page, errors = tmp_path / "deep" / "report.html", tmp_path / "errors.json"
    test, hot = f"300 K={data}/test.xyz", f"{data}/hot.xyz"
    result = bayrace("report", model, "--test", test, "--ood", hot, "--output", page)
    assert result.exit_code == 0, result.output
    assert f"report: {page}" in result.stdout
    assert "Typical errors. On the 4 structures of “300 K”" in result.stdout
    content = embedded(page)
    assert list(content["numbers"]["sets"]) == ["300 K", "hot"]
    assert content["facts"]["elements"] == "H, C, O"
    table = content["tables"]["accuracy"]
    rmse = next(row for row in table["rows"] if row[:2] == ["hot", "forces"])[4]
    bayrace("evaluate", model, data / "hot.xyz", "--json", errors)
    expected = json.loads(errors.read_text())["sets"]["hot.xyz"]["forces"]["rmse"]
    assert rmse == pytest.approx(1000 * expected)
    keys = [panel["key"] for panel in content["panels"]]
    assert "training-forces" in keys  # the history lies beside the model
    assert "roc" in keys


def test_the_test_files_of_the_run_are_the_default(bayrace, model, tmp_path):
    page = tmp_path / "report.html"
    result = bayrace("report", model, "-o", page, "--title", "Mine")
    assert result.exit_code == 0, result.output
    content = embedded(page)
    assert list(content["numbers"]["sets"]) == ["cold", "hot"]
    assert content["title"] == "Mine"


def test_a_calibrated_potential_is_shown_before_and_after(bayrace, model, data, tmp_path):
    calibration = Calibration("scale", Recalibration(3.0, 9), Recalibration(0.5, 9), None, 3, "")
    calibrated = tmp_path / "calibrated.bayrace"
    replace(Potential.load(model), calibration=calibration).save(calibrated)
    page = tmp_path / "report.html"
    result = bayrace("report", calibrated, "--test", data / "test.xyz", "-o", page)
    assert result.exit_code == 0, result.output
    rows = embedded(page)["tables"]["coverage"]["rows"]
    spreads = {row[1]: row[3] for row in rows}
    assert spreads["energy"] == pytest.approx(3 * spreads["energy, before"])
    assert spreads["forces"] == pytest.approx(0.5 * spreads["forces, before"])


def test_training_data_are_recognised(bayrace, model, data, tmp_path):
    page = tmp_path / "report.html"
    result = bayrace("report", model, "--test", data / "train.xyz", "-o", page)
    assert result.exit_code == 0, result.output
    assert "9 of the 12 structures of “train” were used for training" in result.stdout


def test_mistakes_are_explained(bayrace, model, data, tmp_path, make_potential):
    test = data / "test.xyz"
    twice = bayrace("report", model, "--test", test, "--ood", test, "-o", tmp_path / "r.html")
    assert twice.exit_code == 2
    assert "two sets are called 'test'" in twice.stderr
    with pytest.raises(ValueError, match="give --test FILE"):
        named_sources([], [], make_potential())
    assert not list(tmp_path.iterdir())


def test_names_and_titles(make_potential, tmp_path):
    odd = tmp_path / "a=b.xyz"
    odd.touch()
    sources = named_sources(
        ["300 K=x/t.xyz", "dir/test.xyz.gz", str(odd)], ["hot=h.xyz"], make_potential()
    )
    assert sources == [
        ("300 K", ["x/t.xyz"], "test"),
        ("test", ["dir/test.xyz.gz"], "test"),
        ("a=b", [str(odd)], "test"),
        ("hot", ["h.xyz"], "ood"),
    ]
    assert default_title(tmp_path / "run" / "model.bayrace") == "run"
    assert default_title(tmp_path / "aspirin.bayrace") == "aspirin"


def test_histories_of_members(tmp_path):
    for place in (0, 2, 10):
        folder = tmp_path / f"member-{place}"
        folder.mkdir()
        (folder / "history.jsonl").write_text('{"epoch": 1}\n\n', encoding="utf-8")
    assert read_histories(tmp_path) == {f"member {place}": [{"epoch": 1}] for place in (0, 2, 10)}
    assert read_histories(tmp_path / "member-0") == {"run": [{"epoch": 1}]}
    assert read_histories(tmp_path / "elsewhere") == {}
