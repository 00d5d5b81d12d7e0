"""A program that reads a file and writes another, for VASP, ORCA, CP2K, Quantum ESPRESSO, ...

In a fresh folder: copy `files` there, write the structure in any format of ASE, run the command,
read the result with ASE. The atoms that come back must be those that were sent; their order may
differ, since some formats sort them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import ase.io
import numpy as np
from annotated_types import Gt, MinLen
from ase.geometry import find_mic
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from bayrace.data.frame import Frame, LabelKeys, frame_from_atoms
from bayrace.label.oracle import OracleError, bare_atoms, labelled
from bayrace.system.process import signal_name

_MOVED = 0.01  # Å; formats round positions, but not that much
_SHOWN = 400  # characters of a program's last words
_KEYS = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)


@dataclass(frozen=True)
class CommandOracle:
    """Any program that reads a file and writes another.

    Write `input`, run `command` in the same folder, read `output`.

    "{input}", "{output}" and "{folder}" in the command stand for the names. It runs without a
    shell; write "sh -c '...'" for pipes.
    """

    name: ClassVar[str] = "command"
    command: Annotated[str, MinLen(1)]
    """Run in the folder of the files; {input}, {output} and {folder} stand for their names."""
    input: Annotated[str, MinLen(1)]
    """Name of the file that is written: POSCAR."""
    output: Annotated[str, MinLen(1)]
    """Name of the file that is read: vasprun.xml."""
    input_format: str | None = None
    """ASE's name of the format of the input; null: by the name of the file."""
    output_format: str | None = None
    """ASE's name of the format of the output; null: by the name of the file."""
    write: dict[str, Any] = field(default_factory=dict)
    """More arguments of ase.io.write for the input."""
    files: tuple[str, ...] = ()
    """Copied to the folder: INCAR, KPOINTS, POTCAR."""
    timeout: Annotated[float, Gt(0)] | None = None
    """Most time of the program, s; null: that of the labelling."""
    keep: str | None = None
    """Folder that keeps all calculations; null: none is kept."""

    def __post_init__(self) -> None:
        """Refuse what could not be run, or would be written outside the folder."""
        split_command(self.command)
        for name in (self.input, self.output):
            check_inside(name)

    @property
    def method(self) -> str:
        """Command and files, which should say it all."""
        written = ", ".join(f"{key}={value!r}" for key, value in sorted(self.write.items()))
        return f"{self.command} ({', '.join([self.input, *self.files])}; {written})"

    def label(self, frame: Frame) -> Frame:
        """Energy, forces, and stress if the output has one."""
        with self._folder() as folder:
            self._prepare(folder, frame)
            self._run(folder, frame)
            return self._read(folder, frame)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        if self.keep is not None:
            Path(self.keep).mkdir(parents=True, exist_ok=True)
            yield Path(tempfile.mkdtemp(prefix="calculation-", dir=self.keep)).resolve()
            return
        with tempfile.TemporaryDirectory(prefix="bayrace-") as folder:
            yield Path(folder).resolve()

    def _prepare(self, folder: Path, frame: Frame) -> None:
        for name in self.files:
            if not Path(name).is_file():
                raise OracleError(f"{name}: no such file to copy for {self.command!r}; correct it")
            shutil.copy(name, folder)
        atoms: Any = bare_atoms(frame)
        try:
            ase.io.write(folder / self.input, atoms, format=self.input_format, **self.write)
        except Exception as error:  # ASE's writers raise anything
            raise OracleError(
                f"{frame.origin}: cannot write {self.input} ({type(error).__name__}: {error}); "
                "check input_format and write"
            ) from error

    def _run(self, folder: Path, frame: Frame) -> None:
        names = {"input": self.input, "output": self.output, "folder": str(folder)}
        arguments = [_filled(part, names) for part in split_command(self.command)]
        log = folder / "bayrace-command.log"
        try:
            with log.open("wb") as file:
                process = subprocess.Popen(  # noqa: S603 - the user's own command
                    arguments,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
        except (OSError, ValueError) as error:  # the latter of a zero byte
            raise OracleError(
                f"{arguments[0]}: cannot be run ({error}); install it here and on every worker, "
                "or give its whole path"
            ) from error
        code = self._wait(process, frame)
        if code != 0:
            said = log.read_text(encoding="utf-8", errors="replace").strip()[-_SHOWN:]
            how = (
                f"was killed by {signal_name(-code)}"
                if code < 0
                else f"ended with exit code {code}"
            )
            raise OracleError(f"{frame.origin}: {self.command!r} {how}: {said or 'silent'}")

    def _wait(self, process: subprocess.Popen[bytes], frame: Frame) -> int:
        try:
            return process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            raise OracleError(
                f"{frame.origin}: {self.command!r} took more than {self.timeout:g} s; raise the "
                "time-out, or leave the structure out"
            ) from None
        finally:  # whatever ends us or the program ends what it started too
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _read(self, folder: Path, frame: Frame) -> Frame:
        path = folder / self.output
        if not path.is_file():
            raise OracleError(f"{frame.origin}: {self.command!r} wrote no {self.output}")
        try:
            found: Any = ase.io.read(path, index=-1, format=self.output_format)
            result = frame_from_atoms(found, keys=_KEYS, source=str(path))
        except Exception as error:  # ASE's readers raise anything
            raise OracleError(
                f"{frame.origin}: cannot read {self.output} ({type(error).__name__}: {error}); "
                "check output_format, and whether the calculation ended well"
            ) from error
        if result.energy is None or result.forces is None:
            raise OracleError(
                f"{frame.origin}: {self.output} has no energy or no forces; ask the program for "
                "both"
            )
        order = matching(frame, result)
        energy = found.calc.results.get("free_energy", result.energy)  # whose slope the forces are
        results = {"energy": energy, "forces": result.forces[order], "stress": result.stress}
        return labelled(frame, results)


def split_command(command: str) -> list[str]:
    """The words of a command line; OracleError where there are none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise OracleError(f"command {command!r}: cannot be split ({error}); close it") from None
    if not words or not words[0]:
        raise OracleError(f"command {command!r}: is empty; give a program and its arguments")
    return words


def check_inside(name: str) -> None:
    """Refuse the name of a file that would lie outside the folder of a calculation."""
    path = Path(name)
    if not path.name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise OracleError(
            f"{name!r}: lies outside the folder of the calculation; give a plain name, as POSCAR"
        )


def _filled(word: str, names: Mapping[str, str]) -> str:
    """The word with {input}, {output} and {folder} replaced; other braces are the program's."""
    return re.sub(r"\{(input|output|folder)\}", lambda found: names[found[1]], word)


def matching(frame: Frame, result: Frame) -> NDArray[np.int64]:
    """Indices (n,) of the atoms of `result` that are those of `frame`."""
    if not np.array_equal(np.sort(frame.numbers), np.sort(result.numbers)):
        raise OracleError(f"{frame.origin}: other atoms came back than were sent; check the output")
    lattice: Any = frame.cell if frame.pbc.any() else np.zeros((3, 3))
    difference = (result.positions[None] - frame.positions[:, None]).reshape(-1, 3)
    _, length = find_mic(difference, lattice, frame.pbc)  # type: ignore[no-untyped-call]
    distance = length.reshape(len(frame.numbers), -1)
    other = frame.numbers[:, None] != result.numbers[None]
    _, order = linear_sum_assignment(np.where(other, 1e6, distance))
    moved = distance[np.arange(len(order)), order].max(initial=0.0)
    if moved > _MOVED:
        raise OracleError(
            f"{frame.origin}: an atom came back {moved:.3g} Å from where it was sent; make the "
            "program keep the structure: no relaxation, no reorientation, no symmetry"
        )
    return np.asarray(order, dtype=np.int64)


METHODS = (CommandOracle,)
