"""A training drawn by TensorBoard and Weights & Biases, as their own readers see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bayrace.config import Config, ConfigError, make_config
from bayrace.data.embedded import embedded
from bayrace.train.callbacks import Callbacks
from bayrace.train.settings import Event, StepEvent, ValidEvent
from bayrace.workflow.logs import Writer
from bayrace.workflow.train import train


def config(folder: Path, log: str) -> Config:
    raw = {
        "output": str(folder),
        "log": log,
        "data": {"train": f"{embedded('ethanol-train')}@:12", "valid": 4},
        "model": {"preset": "tiny"},
        "train": {"max_epochs": 4, "batch_size": 4},
        "posterior": "point",
    }
    return make_config(raw)


def history(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_tensorboard_reads_the_history(tmp_path: Path) -> None:
    """Also of a run that was interrupted and resumed: every validation is there once."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard"
    )
    chosen = config(tmp_path / "run", "tensorboard")
    heard: list[Event] = []
    stopped = Callbacks(observer=heard.append, stop=lambda: len(heard) >= 5)
    assert train(chosen, callbacks=stopped).fit.reason == "interrupted"
    train(chosen, resume=True)
    events = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("valid/forces_mae")}
    expected = {line["step"]: line["valid"]["forces_mae"] for line in history(tmp_path / "run")}
    assert found == pytest.approx(expected, rel=1e-6)
    assert "train/loss" in events.Tags()["scalars"]
    assert "learning_rate" in events.Tags()["scalars"]


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(config(tmp_path / "run", "wandb"))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert (tmp_path / "run" / "wandb.id").read_text()


def test_what_is_missing_is_named_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)  # as if not installed
    with pytest.raises(ConfigError, match=r"pip install 'bayrace\[wandb\]'"):
        train(config(tmp_path / "run", "wandb"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="log"):
        config(tmp_path, "tensorbord")


def test_not_every_step_is_written() -> None:
    class Kept:
        def __init__(self) -> None:
            self.numbers: dict[int, Mapping[str, float]] = {}

        def write(self, numbers: Mapping[str, float], step: int) -> None:
            self.numbers[step] = numbers

        def close(self) -> None: ...

    now = 0.0
    kept = Kept()
    writer = Writer([kept], clock=lambda: now)
    for step in range(1, 6):
        writer(StepEvent(1, 2, step, 9, step, 3.0, {"energy": 1.0}, 0.5, 0.01, now, 1.0))
        now += 0.4
    assert list(kept.numbers) == [1, 4]
    assert kept.numbers[1] == {
        "train/loss": 3.0,
        "train/gradient_norm": 0.5,
        "train/energy": 1.0,
        "learning_rate": 0.01,
    }
    writer(ValidEvent(1, 5, {"forces_mae": 7.0}, {"loss": 3.0}, 7.0, 7.0, True, 0.01, 2.0))
    assert kept.numbers[5] == {"valid/forces_mae": 7.0, "epoch": 1.0, "learning_rate": 0.01}
