from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayrace.system.cores import assign_cores, busy_cores, usable_cores


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        ((0, 1), 2, ((0,), (1,))),
        ((2, 3, 6, 7), 2, ((2, 3), (6, 7))),
        ((0, 1, 2, 3, 4), 2, ((0, 1), (2, 3, 4))),
        ((4,), 1, ((4,),)),
        ((0, 1), 3, ((0,), (1,), (0,))),
    ],
)
def test_every_worker_has_neighbouring_cores(cores, workers, expected):
    assert assign_cores(cores, workers) == expected


@pytest.mark.parametrize("workers", range(1, 9))
def test_no_core_is_shared_or_idle_while_there_are_enough(workers):
    cores = (1, 2, 3, 5, 8, 13, 21, 34)
    slots = assign_cores(cores, workers)
    assert tuple(core for slot in slots for core in slot) == cores
    assert {len(slot) for slot in slots} <= {8 // workers, 8 // workers + 1}


def test_no_workers():
    with pytest.raises(ValueError, match="workers=0: at least 1"):
        assign_cores((0, 1), 0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform cannot pin")
def test_a_pinned_process_and_its_threads_stay_on_their_core():
    last = usable_cores()[-1]
    code = (
        "import os, threading; from bayrace.system.cores import pin, usable_cores;"
        f"pin(({last},)); print(usable_cores());"
        "t = threading.Thread(target=lambda: print(usable_cores())); t.start(); t.join()"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert printed.stdout.decode().split() == [f"({last},)"] * 2


SPIN = "while True: pass"


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="the platform does not tell")
def test_a_core_that_works_is_seen_as_busy():
    with subprocess.Popen([sys.executable, "-c", SPIN]) as other:
        most = max(busy_cores() for _ in range(20))
        other.kill()
    assert 0.5 < most <= len(usable_cores())


def waiting(before, environment):
    """OMP_WAIT_POLICY of a new process that runs `before` and then makes room for others."""
    code = (
        f"import os\n{before}\nfrom bayrace.system import cores\ncores.share_cores()\n"
        "print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    variables = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=variables | environment, text=True).strip()


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="the platform does not tell")
def test_threads_sleep_while_they_wait_on_busy_cores():
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in usable_cores()]
    try:
        assert waiting("", {}) == "PASSIVE"
        assert waiting("", {"OMP_WAIT_POLICY": "ACTIVE"}) == "ACTIVE"
        assert waiting("", {"GOMP_SPINCOUNT": "100"}) == "None"
        assert waiting("import torch", {}) == "None"  # too late
    finally:
        for other in others:
            other.kill()
            other.wait()
