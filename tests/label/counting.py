"""A calculator that takes its time, may fail, and counts its calls in a log of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT


class Counting(EMT):
    """Appends "start x" and "end x" to a log, where x tells the structure."""

    def __init__(
        self, *, log: str, seconds: float = 0.0, failing: float = 0.0, trick: str = ""
    ) -> None:
        super().__init__()
        self.log, self.seconds, self.failing, self.trick = Path(log), seconds, failing, trick

    def calculate(
        self, atoms: Any = None, properties: Any = ("energy",), changes: Any = all_changes
    ) -> None:
        name = f"{atoms.positions[0, 0]:.6f}"
        call = self._write(f"start {name}")
        self._play(call)
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            time.sleep(0.01)
        if (call * 7) % 10 < 10 * self.failing:
            raise RuntimeError("no convergence")
        super().calculate(atoms, properties, changes)
        self._write(f"end {name}")

    def _play(self, call: int) -> None:
        """Do something bad in every second call."""
        if call % 2 == 0:
            return
        if self.trick == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.trick == "hang":
            time.sleep(3600)
        if self.trick == "exit":
            os._exit(3)

    def _write(self, line: str) -> int:
        """Returns the number of lines that begin like this one and were there before."""
        with self.log.open("a+", encoding="utf-8") as file:
            file.write(f"{line}\n")  # one write of an appended line, so that processes can share it
            file.flush()
            file.seek(0)
            return sum(other.startswith(line.split()[0]) for other in file) - 1
