from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from bayrace.cli.progress import HEARTBEAT, PlainLines, training_display
from bayrace.train.loop import StepEvent, ValidEvent

STEP = StepEvent(
    epoch=2,
    max_epochs=9,
    batch=3,
    steps_per_epoch=10,
    step=13,
    loss=1.25,
    parts={"energy": 0.25, "forces": 1.0},
    gradient_norm=2.0,
    learning_rate=0.01,
    elapsed=61.0,
    eta=125.0,
)
VALID = ValidEvent(
    epoch=2,
    step=20,
    metrics={"loss": 0.5, "energy_mae": 12.345, "forces_mae": 67.891},
    train={"loss": 0.75},
    monitor=0.5,
    best=0.5,
    improved=True,
    learning_rate=0.01,
    elapsed=65.0,
)


def test_plain_lines_for_validations_and_a_rare_heartbeat():
    now = [0.0]
    console = Console(file=io.StringIO(), width=200)
    lines = PlainLines(console, clock=lambda: now[0])
    for second in range(int(2.5 * HEARTBEAT)):
        now[0] = float(second)
        lines(replace(STEP, step=second))
    lines(VALID)
    printed = console.file.getvalue().splitlines()
    assert len(printed) == 3
    assert printed[0].startswith("epoch 2/9  step 30  loss 1.25 (energy 0.25, forces 1)")
    assert "eta 2m05s" in printed[0]
    assert "MAE energy 12.35 meV, forces 67.89 meV/Å (best)" in printed[2]


def test_stress_is_shown_where_it_is_trained():
    console = Console(file=io.StringIO(), width=200)
    metrics = VALID.metrics | {"stress_mae": 1.234}
    PlainLines(console, clock=lambda: 0.0)(replace(VALID, metrics=metrics))
    assert "forces 67.89 meV/Å, stress 1.23 meV/Å³ (best)" in console.file.getvalue()


def test_a_live_display_on_a_terminal():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with training_display(console) as observer:
        observer(STEP)
        observer(VALID)
    shown = console.file.getvalue()
    for text in ("epoch 2/9", "step 3/10", "eta 2m05s", "12.35 meV", "lr 0.01", "loss 1.25"):
        assert text in shown
