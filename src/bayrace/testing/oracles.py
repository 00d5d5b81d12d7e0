"""What every oracle must satisfy: labels of the structure it was given, whose forces are slopes."""

from __future__ import annotations

import pickle
from dataclasses import is_dataclass, replace

import numpy as np

from bayrace.data.frame import Frame
from bayrace.label.oracle import Oracle, check_label


def check_oracle(
    oracle: Oracle, frame: Frame, *, step: float = 1e-3, tolerance: float = 1e-3, seed: int = 0
) -> None:
    """Check an oracle on a structure that it can label, by four calculations.

    It says its method in a line, survives the way to another process, keeps the structure, repeats
    itself, and its forces are the slope of its energy along a random direction (`step` in Å,
    `tolerance` in eV/Å).
    """
    assert is_dataclass(oracle), "an oracle is a dataclass; its fields are its options"
    assert oracle.method.strip(), "its method says nothing"
    assert "\n" not in oracle.method, "its method is more than a line"
    assert pickle.loads(pickle.dumps(oracle)).method == oracle.method, "another process differs"  # noqa: S301
    found = oracle.label(frame)
    check_label(found, max_force=np.inf)
    assert np.array_equal(found.numbers, frame.numbers), "other atoms came back"
    assert np.array_equal(found.positions, frame.positions), "atoms have moved"
    again = oracle.label(frame)
    assert np.isclose(_energy(again), _energy(found), atol=1e-6), "the energy is another each time"
    direction = np.random.default_rng(seed).normal(size=frame.positions.shape)
    direction /= np.linalg.norm(direction)
    ends = [
        _energy(oracle.label(replace(frame, positions=frame.positions + sign * step * direction)))
        for sign in (-1, 1)
    ]
    slope = (ends[1] - ends[0]) / (2 * step)
    assert found.forces is not None
    force = float((found.forces * direction).sum())
    assert abs(slope + force) < tolerance, f"the slope is {slope} eV/Å, the force {force}"


def _energy(frame: Frame) -> float:
    assert frame.energy is not None, "a label has no energy"
    return frame.energy
