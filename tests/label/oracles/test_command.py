"""Programs as oracles: braces are theirs, and nothing that they start is left behind."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import numpy as np
import pytest

from bayrace.data.frame import bare_frame
from bayrace.label.oracle import OracleError
from bayrace.label.oracles.command import CommandOracle

FRAME = bare_frame(
    np.array([1, 1]),
    np.array([[0.0, 0.0, 0.0], [0.74, 0.0, 0.0]]),
    np.zeros((3, 3)),
    np.zeros(3, dtype=bool),
    source="a.xyz",
)
AWK = """
NR == 1 {print $1}
NR == 2 {print "Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.5"}
NR > 2 {print $1, $2, $3, $4, 0, 0, 1}
"""


def oracle(command: str) -> CommandOracle:
    return CommandOracle(command=command, input="in.xyz", output="out.xyz")


def test_braces_belong_to_the_program() -> None:
    command = shlex.join(["sh", "-c", f"awk '{AWK}' {{input}} > {{output}}"])
    label = oracle(command).label(FRAME)
    assert label.energy == -1.5
    np.testing.assert_array_equal(label.forces, [[0, 0, 1], [0, 0, 1]])


def test_signals_and_exit_codes_are_told_apart() -> None:
    with pytest.raises(OracleError, match="ended with exit code 3"):
        oracle("sh -c 'exit 3'").label(FRAME)
    with pytest.raises(OracleError, match="was killed by SIGSEGV"):
        oracle("sh -c 'kill -SEGV $$'").label(FRAME)


def test_children_are_not_left_behind(tmp_path: Path) -> None:
    """A program that ends itself and leaves another running."""
    note = tmp_path / "pid"
    with pytest.raises(OracleError, match="wrote no"):
        oracle(f"sh -c 'sleep 1000 & echo $! > {note}'").label(FRAME)
    pid = int(note.read_text())
    while _alive(pid):  # pytest's own limit names what hangs
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    """Whether a process runs; what has ended but was not asked after does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() and bool(
            os.kill(pid, 0) or 1
        )
    except (ProcessLookupError, FileNotFoundError):
        return False
