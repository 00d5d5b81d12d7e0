from __future__ import annotations

import re

import pytest

from bayrace.potential.potential import Potential


@pytest.mark.slow
def test_the_demo_ends_with_a_report(bayrace, tmp_path):
    arguments = ("demo", "--output", tmp_path, "--max-time", "20s", "--steps", 20)
    result = bayrace(*arguments)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for key in ("parity-forces", "calibration-forces", "roc", "training-loss", "dynamics-energy"):
        assert f'data-panel="{key}"' in page
    assert "1000 K (never seen)" in page
    assert f"Calculator(&quot;{tmp_path}/model.bayrace&quot;)" in page
    assert len(list(tmp_path.glob("*.png"))) == 5
    assert "forces are wrong by" in result.stdout
    assert re.search(r"dynamics: \S+ ps at 300 K", result.stdout)
    assert f"report: {tmp_path / 'report.html'}" in result.stdout
    assert "AUROC" in result.stdout
    potential = Potential.load(tmp_path / "model.bayrace")
    assert potential.posterior.name == "distance"
    assert potential.calibration is not None
