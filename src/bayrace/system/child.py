"""The other end of `bayrace.system.jobs`: a process that does the task on its standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from bayrace.system.cores import pin
from bayrace.system.jobs import FAILED, FINISHED, INTERRUPTED
from bayrace.system.process import tune_process
from bayrace.system.signals import stop_on_signals

Work = Callable[[dict[str, Any], Callable[[], bool]], bool]
"""Does a task and says whether it came to its end, or to where `stop` told it to save."""


def do_task(work: Work) -> int:
    """Do the task of this process by `work(task, stop)`; the exit code that tells how it went.

    Import torch within `work`: by then the process keeps to its cores, and every thread inherits
    them. `stop` is true after a signal, or when nobody waits for the result any more.
    """
    with stop_on_signals() as stopped:
        job: dict[str, Any] = json.load(sys.stdin)
        pin(job["cores"])
        parent: int = job["parent"]
        tune_process()
        try:
            ended = work(job["task"], lambda: stopped() or os.getppid() != parent)
        except (ValueError, OSError) as error:  # their messages are for users
            print(error)
            return FAILED
    return FINISHED if ended else INTERRUPTED
