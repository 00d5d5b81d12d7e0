"""Processes that outlived a killed loop: those that train or explore must not meet their heirs.

Every process that a loop starts inherits a variable that names its folder. Calculations of labels
bear it too, but they are left alone: they were paid for, and labelling waits for them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "BAYRACE_LOOP"
_MODULES = ("bayrace.workflow.member_process", "bayrace.workflow.loop.runs")


def adopt(folder: Path) -> int:
    """Mark this process as the loop of `folder`, and end what an earlier one left behind."""
    name = str(folder.resolve())
    os.environ[VARIABLE] = name
    return _end_all(name)


def _end_all(name: str) -> int:
    """Files are replaced as a whole wherever they are written, so these may be killed."""
    import psutil

    gone = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            ours = any(module in words for module in _MODULES)
            if ours and process.environ().get(VARIABLE) == name:
                process.kill()
                gone.append(process)
    psutil.wait_procs(gone, timeout=10)
    return len(gone)
