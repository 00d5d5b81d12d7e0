"""What posteriors that train on are fitted by in the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayrace.core.outputs import Params
from bayrace.data.dataset import Dataset
from bayrace.models.noise import Lambdas
from bayrace.posterior.method import FitTask
from bayrace.train.callbacks import Callbacks
from bayrace.train.loop import TrainSettings


def fit_by(
    fit_task: Callable[[FitTask, Any], Any],
    model: Any,
    likelihood_at: Any,
    train: Dataset,
    valid: Dataset,
    *,
    settings: TrainSettings,
    folder: Path,
    options: Any,
    refit_epochs: int,
    initial: Params | None,
    resume: bool = False,
    **calls: Any,
) -> Any:
    """What `fit_task` makes of plain arguments."""
    task = FitTask(
        model,
        initial,
        train,
        valid,
        lambdas=Lambdas(1.0, 1.0, 1.0),
        likelihood_at=likelihood_at,
        settings=settings,
        refit_epochs=refit_epochs,
        folder=folder,
        resume=resume,
        callbacks=Callbacks(**calls),
    )
    return fit_task(task, options)
