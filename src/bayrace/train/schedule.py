"""Learning-rate schedules: constant, plateau, warm-up and cosine. Their state is two numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""


@dataclass(frozen=True)
class Plateau:
    """Multiply the rate by `factor` when the monitor has not improved for `patience` validations.

    As torch's ReduceLROnPlateau with a relative threshold, except that the threshold is relative
    to the magnitude of the best value, so it also means something for a negative log-likelihood.
    """

    factor: float
    patience: int  # validations without improvement that are tolerated
    threshold: float  # relative improvement that counts as one
    minimum: float  # the learning rate never falls below this

    def __post_init__(self) -> None:
        if not 0 < self.factor < 1:
            raise ValueError(f"factor={self.factor}: must be between 0 and 1, for example 0.9")


@dataclass(frozen=True)
class WarmupCosine:
    """Rise linearly over `warmup` steps, and fall as half a cosine to `floor` times the peak.

    The cosine follows the whole run: its argument is the larger of the fraction of steps done and
    the fraction of `max_time` used, so a run limited by time reaches the floor when time ends.
    """

    warmup: int  # steps
    floor: float  # fraction of the peak rate

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 0 <= self.floor <= 1:
            raise ValueError(
                f"warmup={self.warmup}, floor={self.floor}: "
                "warmup counts steps from 0 up, floor is a fraction of lr from 0 to 1"
            )


Schedule = Constant | Plateau | WarmupCosine


@dataclass(frozen=True)
class ScheduleState:
    """What a plateau remembers; the other schedules leave it alone."""

    scale: float = 1.0  # of the peak rate
    best: float | None = None
    stale: int = 0  # validations since the best


def learning_rate(
    schedule: Schedule, state: ScheduleState, *, peak: float, step: int, progress: float
) -> float:
    """The rate of the step after `step` finished ones; `progress` of the run is in 0..1."""
    match schedule:
        case Constant():
            return peak
        case Plateau():
            return max(peak * state.scale, min(schedule.minimum, peak))
        case WarmupCosine():
            warm = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
            cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
            return peak * warm * (schedule.floor + (1 - schedule.floor) * cosine)


def progress(*, step: int, total_steps: int, elapsed: float, max_time: float | None) -> float:
    """Fraction of the run that is done, by steps or by time, whichever is further."""
    by_step = step / total_steps if total_steps else 1.0
    by_time = elapsed / max_time if max_time else 0.0
    return min(1.0, max(by_step, by_time))


def observe(schedule: Schedule, state: ScheduleState, value: float) -> ScheduleState:
    """The state after a validation whose monitor, smaller is better, is `value`."""
    if not isinstance(schedule, Plateau):
        return state
    if state.best is None or value < state.best - schedule.threshold * abs(state.best):
        return replace(state, best=value, stale=0)
    if state.stale < schedule.patience:
        return replace(state, stale=state.stale + 1)
    return replace(state, scale=state.scale * schedule.factor, stale=0)
