"""A molecular dynamics run: temperature, energy, and the largest force σ of every record."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bayrace.report.document import Axis, Mark, Panel
from bayrace.report.panels.accuracy import MILLI

POINTS = 1200  # of one line


def dynamics_panels(
    *,
    time: Sequence[float],
    potential_energy: Sequence[float],
    temperature: Sequence[float],
    force_spread: Sequence[float],
) -> list[Panel]:
    """From fs, eV, K and eV/Å, one number per record."""
    energies = MILLI * (np.asarray(potential_energy) - potential_energy[0])
    lines = (
        ("temperature", "Temperature", Axis("temperature", "K"), np.asarray(temperature)),
        ("energy", "Potential energy", Axis("energy − start", "meV"), energies),
        ("spread", "Largest force σ", Axis("σ", "meV/Å"), MILLI * np.asarray(force_spread)),
    )
    step = max(1, math.ceil(len(time) / POINTS))
    return [
        Panel(
            f"dynamics-{key}",
            title,
            "",
            Axis("time", "fs"),
            axis,
            [Mark("line", "", 1, x=time[::step], y=values[::step], style="thin")],
        )
        for key, title, axis, values in lines
        if values.any()
    ]
