"""`bayrace active` on ethanol with the embedded frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

pytest.importorskip("distributed")
pytest.importorskip("tblite")

from bayrace.cli.active import left
from bayrace.workflow.member import MemberProgress

Command = Callable[..., Result]


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    """One round of two labels by GFN2-xTB, from the structures of the training."""
    file = tmp_path / "ethanol.yaml"
    file.write_text(
        f"output: {tmp_path}/loop\n"
        f"data: {{train: {data}/train.xyz, valid: 3}}\n"
        f"test: {{hot: {data}/hot.xyz}}\n"
        "model: {preset: tiny}\n"
        "loss: {refit_epochs: 0}\n"
        "train: {max_epochs: 40, batch_size: 4, cosine_warmup: 5, device: cpu}\n"
        "posterior: point\n"
        "explore:\n"
        "  {temperatures: [300], structures: 2, steps: 20, every: 10, workers: 1,\n"
        "   rule: {bound: 0.0001}}\n"  # whatever the network, it is uncertain
        "select: {by: variance, budget: 2}\n"
        "tune: {epochs: 1}\n"
        "stop: {rounds: 1}\n",
        encoding="utf-8",
    )
    return file


def test_a_loop_and_its_summary(config: Path, bayrace: Command, tmp_path: Path) -> None:
    result = bayrace("active", config)
    assert result.exit_code == 0, result.output
    for text in (
        "label    GFN2-xTB",
        "until    1 rounds",
        "round 0  train     9 training and 3 validation structures",
        "round 1  explore   2 runs: 2 uncertain",
        "round 1  select    2 of 6 structures",
        "round 1  label     2 labels; they were wrong by",
        "round 1  train     11 training",
        "round 1  evaluate  forces RMSE, meV/Å: hot",
        "ended: 1 rounds are done",
        f"potential: {tmp_path}/loop/model.bayrace",
        f"report: {tmp_path}/loop/report.html",
    ):
        assert text in result.stdout, result.stdout
    assert bayrace("info", tmp_path / "loop" / "model.bayrace").exit_code == 0
    again = bayrace("active", config)
    assert again.stdout.count("(found)") == 7
    changed = bayrace("active", config, "-o", "tune.epochs=2")
    assert changed.exit_code == 2
    assert "was begun with other settings of tune" in changed.stderr


def test_mistakes_are_explained(config: Path, bayrace: Command, tmp_path: Path) -> None:
    unknown = bayrace("active", config, "-o", "explore.tempratures=[300]")
    assert unknown.exit_code == 2
    assert "explore.temperatures" in unknown.stderr
    both = bayrace("active", config, "-o", "potential=model.bayrace")
    assert "of no use with potential" in both.stderr
    config.write_text("stop: {rounds: 1}\n", encoding="utf-8")
    assert "give data.train, or a potential" in bayrace("active", config).stderr
    assert not (tmp_path / "loop").exists()


def test_help_has_an_example(bayrace: Command) -> None:
    text = bayrace("active", "--help").stdout
    assert "bayrace active loop.yaml" in text
    assert "select: {by: bald-ef, budget: 10}" in text


def test_a_missing_file_is_told_from_a_training(bayrace: Command, tmp_path: Path) -> None:
    for command in ("active", "replay"):
        result = bayrace(command, tmp_path / "loop.yaml")
        assert result.exit_code == 2
        assert f"no such file; `bayrace {command} --help` shows an example" in result.stderr
        assert "template" not in result.stderr


def test_how_long_members_will_take() -> None:
    def member(state: str, eta: float | None, elapsed: float) -> MemberProgress:
        return MemberProgress(0, state, "", None, 1, 10, {}, elapsed, eta)

    running = [member("running", 60.0, 60.0), member("running", 30.0, 90.0)]
    waiting = member("waiting", None, 0.0)
    assert left([member("running", None, 0.0)]) == ""  # nobody knows yet
    assert left(running) == ", about 1m00s left"
    assert (
        left([*running, waiting]) == ", about 3m00s left"
    )  # then the third, as long as the others
