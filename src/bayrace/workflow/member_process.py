"""The process of one member: `python -m bayrace.workflow.member_process`, see `workflow.workers`.

Torch is imported after the process is pinned to its cores, so that every thread inherits them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayrace.system.child import do_task

_PATIENCE = 600.0  # s for the same member of an ensemble that was killed: it saves and ends


def train_member(task: dict[str, Any], stop: Callable[[], bool]) -> bool:
    """Train the member that a task describes; False where `stop` ended it."""
    from bayrace.config import make_config
    from bayrace.train.callbacks import Callbacks
    from bayrace.train.checkpoint import LAST
    from bayrace.train.diverged import TrainingDiverged
    from bayrace.workflow import train as run
    from bayrace.workflow.member import load_member
    from bayrace.workflow.shared import prepared_from

    resume: bool | None = task["resume"]
    try:
        config = make_config(task["config"], source=task["config"]["output"])
        if resume is None:
            resume = (Path(config.output) / LAST).is_file()
        initial = None if task["initial"] is None else load_member(*task["initial"])
        data = task["data"]
        result = run.train(
            config,
            prepared=data and prepared_from(Path(data), config, initial=initial),
            initial=initial,
            resume=resume,
            overwrite=not resume,
            callbacks=Callbacks(stop=stop),
            patience=_PATIENCE,
        )
    except TrainingDiverged as error:
        raise ValueError(str(error)) from error
    return result.fit.reason != "interrupted"


if __name__ == "__main__":
    sys.exit(do_task(train_member))
