"""One member of an ensemble in a process of its own: `python -m bayrace.workflow.member_process`.

`bayrace.workflow.workers` starts it with a JSON document on its standard input. It answers with its
exit code and, where the code is FAILED, with a message on its standard output. Torch is imported
after the process is pinned to its cores, so that every thread inherits them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from bayrace.system.cores import pin
from bayrace.system.exit_codes import FAILED, FINISHED, INTERRUPTED
from bayrace.system.process import tune_process
from bayrace.train.signals import stop_on_signals

_PATIENCE = 600.0  # s for the same member of an ensemble that was killed: it saves and ends


def main() -> int:
    """Train the member that standard input describes."""
    with stop_on_signals() as stopped:
        job: dict[str, Any] = json.load(sys.stdin)
        pin(job["cores"])
        return _train(job, stopped)


def _train(job: dict[str, Any], stopped: Callable[[], bool]) -> int:
    resume: bool = job["resume"]
    parent: int = job["parent"]
    from bayrace.config import make_config
    from bayrace.train.callbacks import Callbacks
    from bayrace.train.diverged import TrainingDiverged
    from bayrace.workflow import train as run
    from bayrace.workflow.member import load_member

    def stop() -> bool:
        """Whether to save and end: on a signal, or when nobody waits for the result any more."""
        return stopped() or os.getppid() != parent

    tune_process()
    try:
        config = make_config(job["config"], source=job["config"]["output"])
        initial = None if job["initial"] is None else load_member(*job["initial"])
        result = run.train(
            config,
            initial=initial,
            resume=resume,
            overwrite=not resume,
            callbacks=Callbacks(stop=stop),
            patience=_PATIENCE,
        )
    except (ValueError, OSError, TrainingDiverged) as error:  # their messages are for users
        print(error)
        return FAILED
    return INTERRUPTED if result.fit.reason == "interrupted" else FINISHED


if __name__ == "__main__":
    sys.exit(main())
