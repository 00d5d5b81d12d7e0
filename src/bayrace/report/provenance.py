"""Where a potential comes from: facts for the head of a page, and the course of its training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayrace.data.frame import symbols_of
from bayrace.potential.potential import Potential

HISTORY = "history.jsonl"
MOST_MEMBERS = 6  # whose curves are drawn, the number of colours


def potential_facts(potential: Potential, path: Path) -> dict[str, str]:
    """What a reader needs to know which potential this is."""
    posterior, calibration = potential.posterior, potential.calibration
    parameters = sum(value.numel() for value in posterior.draw(1, seed=0).values())
    samples = posterior.samples
    return {
        "model": str(path),
        "elements": symbols_of(potential.elements),
        "posterior": posterior.name + (f", {samples} weight samples" if samples > 1 else ""),
        "calibration": "none"
        if calibration is None
        else f"{calibration.method}, fitted to {calibration.frames} structures",
        "parameters": f"{parameters:,}".replace(",", " "),
        "training structures": str(potential.statistics.get("train_frames", "unknown")),
        "data": potential.fingerprint[:12],
        "written by": f"bayrace {potential.version}",
    }


def read_histories(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Histories in the folder of a run, of its members if it is an ensemble's; maybe none."""
    own = folder / HISTORY
    if own.is_file():
        return {"run": _lines(own)}
    members = sorted(folder.glob(f"member-*/{HISTORY}"), key=lambda file: _order(file.parent.name))
    return {file.parent.name.replace("-", " "): _lines(file) for file in members[:MOST_MEMBERS]}


def _lines(path: Path) -> list[Mapping[str, Any]]:
    texts: Sequence[str] = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(text) for text in texts if text.strip()]


def _order(name: str) -> tuple[int, str]:
    number = name.rpartition("-")[2]
    return (int(number) if number.isdigit() else 0, name)
