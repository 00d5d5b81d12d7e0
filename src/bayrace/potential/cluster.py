"""A potential whose predictions are computed by the workers of a dask cluster.

    with cluster(workers=4, scheduler=None, processes=True) as client:
        for frames, prediction in OnCluster(potential, client).predict_frames(pool):
            ...

Workers get the potential as the bytes of its file, so that they need no disk in common with us, and
keep it. Frames go to them in groups, a few groups ahead of what was asked for, and results come
back in the order of the frames: any number of frames will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.core.target import Target
from bayrace.data.frame import Frame, grouped
from bayrace.potential.potential import Potential, decode, encode
from bayrace.predict.moments import concatenate
from bayrace.predict.predict import Uncertainty
from bayrace.system.cluster import in_order
from bayrace.system.process import tune_process

Result = TypeVar("Result")

_ATOMS = 4_000  # of a task: a tenth of a second or more, beside which a message costs little


@dataclass(frozen=True, eq=False)
class OnCluster:
    """A potential, and the client of the cluster that computes what it predicts."""

    potential: Potential
    client: Any
    device: str = "auto"  # of the workers

    @property
    def target(self) -> Target:
        """What it predicts of a structure."""
        return self.potential.target

    def predict_frames(
        self,
        frames: Iterable[Frame],
        *,
        stress: bool = False,
        uncertainty: Uncertainty = "full",
        calibrated: bool = True,
        edge_budget: int = 20_000,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[list[Frame], Prediction]]:
        """As `Potential.predict_frames`; batches end where tasks end, too."""
        predict = partial(
            _predict,
            stress=stress,
            uncertainty=uncertainty,
            calibrated=calibrated,
            edge_budget=edge_budget,
        )
        done = 0
        for group, prediction in self.each(predict, frames):
            yield group, prediction
            done += len(group)
            if progress is not None:
                progress(done)

    def each(
        self, function: Callable[[Potential, list[Frame]], Result], frames: Iterable[Frame]
    ) -> Iterator[tuple[list[Frame], Result]]:
        """`function(potential, group)` of groups of consecutive frames, computed by workers."""
        task = partial(_with_potential, function, self.device)
        yield from in_order(
            self.client, task, grouped(frames, most_atoms=_ATOMS), encode(self.potential)
        )


def _with_potential(
    function: Callable[[Potential, list[Frame]], Result],
    device: str,
    group: list[Frame],
    content: bytes,
) -> Result:
    """What a worker does."""
    return function(_loaded(content, device), group)


@lru_cache(maxsize=2)
def _loaded(content: bytes, device: str) -> Potential:
    tune_process()
    return decode(content, device=device)


def _predict(potential: Potential, frames: list[Frame], **options: Any) -> Prediction:
    batches = potential.predict_frames(frames, **options)
    joined: Prediction = _on_cpu(concatenate([prediction for _, prediction in batches]))
    return joined


def _on_cpu(value: Any) -> Any:
    """The same where every machine can read it."""
    if isinstance(value, Tensor):
        return value.cpu()
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _on_cpu(getattr(value, f.name)) for f in fields(value)})
    return value
