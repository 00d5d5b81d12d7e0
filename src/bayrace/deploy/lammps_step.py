"""What follows a prediction in LAMMPS, as one compiled call: σ, the stop rule, and all writing.

For a few dozen atoms a prediction pushes Python's own objects out of the processor's caches, and
each of them costs several times more than in a loop. `bayrace.deploy.evaluator` does the same in
Python, and is what this is tested against.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.data.distances import RESOLUTION
from bayrace.deploy.lammps_memory import Layout, Memory, compiled, load, refuse
from bayrace.nn import exponentials, pairs

if TYPE_CHECKING:
    from bayrace.deploy.evaluator import Evaluator

_POINTER = ctypes.c_void_p
_REALS = ("unit", "error", "negligible", "probability", "gap", "resolution")
_WHOLE = ("worst_alone", "sets", "steps")
_ADDRESSES = ("most", "size", "squares", "weights", "table", "assess", "widest")


class Step:
    """The end of a step for one evaluator and one unit of energy."""

    def __init__(self, evaluator: Evaluator, memory: Memory, unit: float) -> None:
        self._finish = load("", torch.float64, 0)["finish"]
        self._neighbours, self._library = evaluator.neighbours, ctypes.byref(memory.library)
        known, rule = evaluator.potential.distances, evaluator.rule
        self._known = known if rule is not None and rule.gap is not None else None
        self._settings, self._held = _settings(evaluator, unit)

    @staticmethod
    def possible(evaluator: Evaluator) -> bool:
        """Whether the compiled functions are there, and know how errors are distributed."""
        here = evaluator.potential.device.type == "cpu"
        return here and evaluator.shape is None and compiled()

    def __call__(self, prediction: Prediction, layout: Layout, f: int, *, look: bool) -> bool:
        """Write everything; whether the rule says to act. Without `look` there is no σ."""
        energy, forces, stress = prediction.energy, prediction.forces, prediction.stress
        arrays: list[Tensor | None] = [energy.mean, prediction.atomic_energy, forces.mean]
        arrays.append(None if stress is None else stress.mean)
        seen: tuple[Tensor, ...] = ()
        if look:
            arrays += [energy.aleatoric, energy.epistemic, forces.aleatoric, forces.epistemic]
            arrays.append(prediction.atomic_epistemic)
            if self._known is not None:
                seen = self._neighbours.seen(self._known)
        held = [None if each is None else each.contiguous() for each in arrays]
        addresses = [None if each is None else each.data_ptr() for each in held]
        watched: list[int | None] = [each.data_ptr() for each in seen]
        broken = self._finish(
            *(self._library, ctypes.byref(layout.given), self._settings),
            *(f, layout.room.ctypes.data, *addresses, *[None] * (9 - len(addresses))),
            *(len(seen[0]) if seen else 0, *(watched or [None] * 3)),
        )
        refuse(broken >= 0)
        return bool(broken)


class _Settings(ctypes.Structure):
    """`settings` of lammps.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_double) for name in _REALS),
        *((name, ctypes.c_long) for name in _WHOLE),
        *((name, _POINTER) for name in _ADDRESSES),
    ]


def _settings(evaluator: Evaluator, unit: float) -> tuple[Any, tuple[Any, ...]]:
    """For C, and what must live as long."""
    rule, known = evaluator.rule, evaluator.potential.distances
    given = _Settings(unit=unit, error=math.inf, probability=math.inf)  # no rule: P is 0
    held: tuple[Any, ...] = ()
    if rule is not None:
        directions = rule.directions
        given.error, given.probability = rule.max_force_error, rule.probability
        given.negligible, given.worst_alone = rule.negligible, rule.over_atoms == "max"
        given.sets, held = len(directions.most), directions.addresses
        given.most, given.size, given.squares, given.weights = (
            ctypes.cast(each, _POINTER) for each in held[:4]
        )
        if rule.gap is not None and known is not None:
            table = np.ascontiguousarray(known.table)
            given.gap, given.resolution, given.steps = rule.gap, RESOLUTION, table.shape[1]
            given.table, held = table.ctypes.data, (*held, table)
    given.assess = ctypes.cast(exponentials.load("", torch.float64, 0)["assess"], _POINTER)
    given.widest = ctypes.cast(pairs.load("double", torch.float64, 0)["widest"], _POINTER)
    return ctypes.byref(given), (*held, given)
