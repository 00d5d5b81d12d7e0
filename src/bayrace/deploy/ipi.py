"""i-PI: a driver that answers with energy, forces, virial and uncertainties.

It speaks i-PI's socket protocol, also the batched one of i-PI 3.3 (`<batch_size>` of a forcefield),
so that the beads of a path integral are evaluated as one batch. i-PI works in atomic units; so do
the numbers of the protocol. Extras are JSON in the same units, and i-PI can print them by name:

    energy_uncertainty             σ of the energy
    forces_uncertainty   (n, 3)    σ of the forces
    energies_uncertainty (n,)      epistemic σ of the energies of atoms
    risk                           P(|force error| > bound), where there is a stop rule
    committee_pot        (M,)      energies of the members, if asked for
    committee_force      (M, 3 n)  their forces
    committee_virial     (M, 9)    their virials
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase.units import Bohr, Hartree
from numpy.typing import NDArray

from bayrace.deploy.evaluator import Evaluated, Evaluator
from bayrace.deploy.members import members_of
from bayrace.deploy.verlet import Geometry

Array = NDArray[np.float64]
Answer = tuple[float, Array, Array, str]
"""Energy, forces (n, 3), virial (3, 3) in atomic units, and extras as JSON."""

_HEADER = 12
_PREFIX = "/tmp/ipi_"  # noqa: S108 - where i-PI has its sockets
_PAUSE = 0.1  # s between two tries to connect
_FORCE = Hartree / Bohr


class IpiEvaluator:
    """Answers for the structures of one system, in atomic units.

    `numbers` and `pbc` are of the system, as i-PI sends positions and cells only. Where the
    stop rule of `evaluator` is broken, the file `stop` is made, which i-PI takes for a request to
    end softly when it lies in the folder i-PI runs in.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        numbers: NDArray[np.int64],
        pbc: NDArray[np.bool_],
        *,
        stop: Path = Path("EXIT"),
        committee: bool = False,
    ) -> None:
        self.evaluator, self.stop = evaluator, stop
        self.evaluations = 0
        self.broken = False
        self._numbers, self._pbc = numbers, pbc
        self._members = (
            [Evaluator(member) for member in members_of(evaluator.potential)] if committee else []
        )

    def __call__(self, cells: Sequence[Array], positions: Sequence[Array]) -> list[Answer]:
        """Evaluate structures given by cells (3, 3), columns are vectors, and positions (n, 3)."""
        geometries = [
            Geometry(self._numbers, at * Bohr, np.ascontiguousarray(cell.T) * Bohr, self._pbc)
            for cell, at in zip(cells, positions, strict=True)
        ]
        for geometry in geometries:
            self._refuse(geometry)
        found = _evaluate(self.evaluator, geometries, uncertain=True)
        committee = [_evaluate(each, geometries, uncertain=False) for each in self._members]
        self.evaluations += len(geometries)
        rule = self.evaluator.rule
        broken = any(each.sigma is not None and each.sigma.broken for each in found)
        if broken and rule is not None and rule.action == "stop":
            self.broken = True
            self.stop.touch()
        return [
            _answer(each, [member[place] for member in committee], ruled=rule is not None)
            for place, each in enumerate(found)
        ]

    def _refuse(self, geometry: Geometry) -> None:
        if len(geometry.positions) != len(self._numbers):
            raise ValueError(
                f"i-PI sent {len(geometry.positions)} atoms, but the structure has "
                f"{len(self._numbers)}; give the driver the file that i-PI starts from"
            )


def serve(connection: socket.socket, evaluate: IpiEvaluator) -> None:
    """Answer i-PI over a connection until it says goodbye."""
    batch, ready = 1, False
    answers: list[Answer] = []
    while True:
        header = _read(connection, _HEADER, last=True)
        message = header.decode().strip()
        if message in ("", "EXIT"):
            return
        if message == "STATUS":
            state = "HAVEDATA" if answers else "READY" if ready else "NEEDINIT"
            connection.sendall(_message(state))
        elif message == "INIT":
            batch, ready = _batch_size(connection), True
        elif message == "POSDATA":
            answers = evaluate(*_structures(connection, batch))
        elif message == "GETFORCE":
            connection.sendall(_message("FORCEREADY") + _packed(answers, batched=batch > 1))
            answers = []
        else:
            raise ValueError(f"i-PI sent {message!r}, which this driver does not know")


def connect(
    *, unix: str | None, host: str, port: int, prefix: str = _PREFIX, patience: float = 30.0
) -> socket.socket:
    """A connection to the i-PI that waits at a unix socket, or at a port of a host.

    An i-PI that is just starting has some seconds, `patience`, to listen.
    """
    place = f"{host}:{port}" if unix is None else f"{prefix}{unix}"
    given_up = time.monotonic() + patience
    while True:
        family = socket.AF_INET if unix is None else socket.AF_UNIX
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            if unix is None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.connect((host, port))
            else:
                connection.connect(place)
        except OSError as error:
            connection.close()
            if time.monotonic() >= given_up:
                raise ValueError(
                    f"no i-PI answers at {place} ({error}); start i-pi input.xml first, with the "
                    "same address in its ffsocket"
                ) from error
            time.sleep(_PAUSE)
        else:
            return connection


def _evaluate(
    evaluator: Evaluator, geometries: list[Geometry], *, uncertain: bool
) -> list[Evaluated]:
    if len(geometries) == 1:  # the neighbours of the last call may serve
        return [evaluator(geometries[0], uncertainty="full" if uncertain else "none")]
    return evaluator.many(geometries, uncertainty="full" if uncertain else "none")


def _answer(found: Evaluated, members: list[Evaluated], *, ruled: bool) -> Answer:
    sigma = found.sigma
    assert sigma is not None
    extras: dict[str, Any] = {
        "energy_uncertainty": sigma.energy / Hartree,
        "forces_uncertainty": (sigma.forces / _FORCE).tolist(),
        "energies_uncertainty": (sigma.energies / Hartree).tolist(),
    }
    if ruled:
        extras["risk"] = sigma.risk
    if members:
        extras["committee_pot"] = [each.energy / Hartree for each in members]
        extras["committee_force"] = [(each.forces / _FORCE).ravel().tolist() for each in members]
        extras["committee_virial"] = [_virial(each).ravel().tolist() for each in members]
    return (found.energy / Hartree, found.forces / _FORCE, _virial(found), json.dumps(extras))


def _virial(found: Evaluated) -> Array:
    return np.zeros((3, 3)) if found.virial is None else found.virial / Hartree


def _batch_size(connection: socket.socket) -> int:
    """From the text of INIT, where i-PI announces it."""
    _read(connection, 4)
    length = int(np.frombuffer(_read(connection, 4), np.int32)[0])
    for token in _read(connection, length).decode(errors="replace").split(","):
        name, _, value = token.partition(":")
        if name.strip() == "batch_size":
            return int(value)
    return 1


def _structures(connection: socket.socket, batch: int) -> tuple[list[Array], list[Array]]:
    """Cells and positions; of a batch the number of atoms comes first, else after the cell."""
    if batch > 1:
        atoms = int(np.frombuffer(_read(connection, 4), np.int32)[0])
        boxes = _floats(connection, batch * 18).reshape(batch, 2, 3, 3)
        positions = _floats(connection, batch * atoms * 3).reshape(batch, atoms, 3)
        return list(boxes[:, 0]), list(positions)
    cell = _floats(connection, 18)[:9].reshape(3, 3)
    atoms = int(np.frombuffer(_read(connection, 4), np.int32)[0])
    return [cell], [_floats(connection, atoms * 3).reshape(atoms, 3)]


def _packed(answers: list[Answer], *, batched: bool) -> bytes:
    atoms = np.int32(len(answers[0][1])).tobytes()
    energies = np.array([answer[0] for answer in answers]).tobytes()
    forces = np.array([answer[1] for answer in answers]).tobytes()
    virials = np.array([answer[2] for answer in answers]).tobytes()
    texts = [answer[3].encode() for answer in answers]
    assert batched or len(answers) == 1
    extras = b"".join(np.int32(len(text)).tobytes() + text for text in texts)
    return energies + atoms + forces + virials + extras


def _message(text: str) -> bytes:
    return text.ljust(_HEADER).encode()


def _floats(connection: socket.socket, count: int) -> Array:
    return np.frombuffer(_read(connection, 8 * count), np.float64).copy()


def _read(connection: socket.socket, count: int, *, last: bool = False) -> bytes:
    """Exactly `count` bytes; none at the end of the conversation, if it may be the `last`."""
    parts: list[bytes] = []
    missing = count
    while missing:
        part = connection.recv(missing)
        if not part:
            if last and not parts:
                return b""
            raise ValueError("i-PI closed the connection in the middle of a message")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
