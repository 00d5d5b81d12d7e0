"""LAMMPS that was built with ML-IAP and Python: what `pair_style mliap unified` calls.

    bayrace export model.bayrace --to mliap -o model.pkl

    pair_style mliap unified model.pkl        # in a build with KOKKOS, which tells ghosts' owners
    pair_coeff * * Si O

or from Python, in a build without:

    model = UnifiedModel(Potential.load("model.bayrace"), lammps=lammps)
    lammps.mliap.load_unified(model)          # then: pair_style mliap unified EXISTS

LAMMPS finds the neighbours. It takes the derivative of the energy by the vector of each pair, from
which it makes forces and virial itself. That is what the plain form of the network gives, a few
times slower than the kernels behind `bayrace.deploy.lammps`. One process: see `_owners`.
"""

from __future__ import annotations

import pickle
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ase.data import chemical_symbols
from torch import Tensor

from bayrace.core.files import whole_file
from bayrace.core.prediction import Prediction
from bayrace.data.batch import Graph, collate
from bayrace.deploy.plain import plain_members
from bayrace.potential.potential import Potential, decode, encode, refuse_property

if TYPE_CHECKING:  # the rule is handed in from above
    from bayrace.simulate.stop import StopRule

_SAME = 1e-6  # Å: components of vectors that differ by less are equal


def export(potential: Potential, path: str | Path) -> tuple[str, ...]:
    """Write a file for `pair_style mliap unified`; what LAMMPS gets from it."""
    model = UnifiedModel(potential)
    with whole_file(Path(path)) as part:
        part.write_bytes(pickle.dumps(model))
    return "energy", "forces"


class UnifiedModel:
    """A potential with the names that LAMMPS' unified interface looks for.

    With a `rule`, uncertainties are computed every `uncertainty_every` calls; where it is broken an
    error ends the run. `last` has the last of these predictions.
    """

    def __init__(
        self,
        potential: Potential,
        *,
        rule: StopRule | None = None,
        uncertainty_every: int = 1,
        lammps: Any = None,
    ) -> None:
        refuse_property(potential, "an engine")
        self.interface: Any = None  # LAMMPS sets it
        self.element_types = [chemical_symbols[number] for number in potential.elements]
        self.ndescriptors = self.nparams = 1  # neither is used
        self.rcutfac = potential.model.cutoff / 2  # LAMMPS doubles it
        self.lammps, self.rule, self.uncertainty_every = lammps, rule, uncertainty_every
        self.last: Prediction | None = None
        self.calls = 0
        self.potential = potential.to(device="cpu")
        self._mark = secrets.randbits(50)  # of this process
        self._members, self._origins = plain_members(self.potential)

    def __reduce__(self) -> tuple[Any, ...]:
        """Only the bytes of a potential's file and the rule are pickled."""
        return _restored, (encode(self.potential), self.rule, self.uncertainty_every)

    def compute_gradients(self, data: Any) -> None:
        """LAMMPS calls it first; there is nothing to do."""

    def compute_descriptors(self, data: Any) -> None:
        """LAMMPS calls it second; there is nothing to do."""

    def compute_forces(self, data: Any) -> None:
        """Energies of atoms, and the derivative of the energy by the vector of each pair."""
        count = int(data.nlistatoms)
        species = torch.as_tensor(np.asarray(data.elems)[:count].astype(np.int64))
        pairs = _Pairs(data, self._owners(data, count))
        order = torch.argsort(species, stable=True)
        rank = torch.argsort(order)
        vectors = pairs.vectors.to(self.potential.dtype).requires_grad_()
        energies = [
            member(vectors, rank[pairs.ends], species[order]).double()[rank]
            for member in self._members
        ]
        mean = torch.stack(energies).mean(0)
        (slope,) = torch.autograd.grad(mean.sum(), vectors)
        atomic = mean.detach() + self._origins.mean(0)[species]
        data.energy = float(atomic.sum())
        data.eatoms = np.ascontiguousarray(atomic.numpy()[np.asarray(data.iatoms)[:count]])
        data.update_pair_forces(pairs.spread(slope.double()))
        if self.rule is not None and self.calls % self.uncertainty_every == 0:
            self._judge(species, pairs)
        self.calls += 1

    def _judge(self, species: Tensor, pairs: _Pairs) -> None:
        """Raise where the rule is broken."""
        assert self.rule is not None
        batch = collate(
            [pairs.graph(species)],
            elements_count=len(self.element_types),
            dtype=self.potential.dtype,
        )
        self.last = self.potential.predict_batch(batch)
        calibration = self.potential.calibration
        forces = None if calibration is None else calibration.forces
        shape = None if forces is None else forces.shape
        risk = self.rule.risk(self.last.forces.total.numpy(), shape)
        if self.rule.broken(risk, None):
            raise RuntimeError(
                f"the forces are no longer trusted: P(error > {self.rule.max_force_error:g} eV/Å) "
                f"is {risk.probability:.2g}, largest at atom {risk.atom} of LAMMPS' own order"
            )

    def _owners(self, data: Any, count: int) -> Tensor:
        """For every atom and ghost the atom of this process that it is, or is an image of.

        The data do not tell. Builds with KOKKOS can pass numbers from atoms to their ghosts;
        elsewhere a handle of LAMMPS knows tags. Ghosts of other processes are refused: a network
        that passes messages needs their features.
        """
        total = int(data.ntotal)
        atoms = torch.arange(count)
        if total == count:
            return atoms
        if hasattr(data, "forward_exchange"):
            given = torch.zeros(total, 2, dtype=torch.float64)
            given[:count, 0], given[:count, 1] = atoms.double(), float(self._mark)
            found = torch.zeros_like(given)
            data.forward_exchange(given, found, 2)
            if bool((found[count:, 1] != self._mark).any()):
                raise ValueError(_RANKS)
            return torch.cat([atoms, found[count:, 0].long()])
        if self.lammps is None:
            raise ValueError(
                "this LAMMPS was built without KOKKOS and does not tell whose images ghost atoms "
                "are; run it from Python and give UnifiedModel its `lammps`"
            )
        if self.lammps.extract_setting("world_size") > 1:
            raise ValueError(_RANKS)
        tags = torch.as_tensor(np.array(self.lammps.numpy.extract_atom("id", nelem=total)))
        place = torch.zeros(int(tags.max()) + 1, dtype=torch.int64)
        place[tags[:count].long()] = atoms
        return place[tags.long()]


_RANKS = (
    "several MPI ranks: a message-passing potential needs the features of atoms of other ranks; "
    "run one rank and give it threads with OMP_NUM_THREADS"
)


class _Pairs:
    """The pairs of LAMMPS' full list, each once."""

    def __init__(self, data: Any, owners: Tensor) -> None:
        receiver = torch.as_tensor(np.asarray(data.pair_i).astype(np.int64))
        sender = owners[torch.as_tensor(np.asarray(data.pair_j).astype(np.int64))]
        vectors = torch.as_tensor(np.array(data.rij, dtype=np.float64)).reshape(-1, 3)
        # An atom and its own image: of the two vectors ±v the one whose first component is positive
        sign = torch.where(vectors.abs() < _SAME, 0.0, vectors.sign())
        ahead = (sign * torch.tensor([4.0, 2.0, 1.0], dtype=sign.dtype)).sum(1) > 0
        self.once = (receiver < sender) | ((receiver == sender) & ahead)
        if 2 * int(self.once.sum()) != len(vectors):
            raise ValueError(
                "LAMMPS gave a list of neighbours that has not every pair in both directions; use "
                "newton on, and no neigh_modify exclude"
            )
        self.ends = torch.stack([receiver, sender])[:, self.once]
        self.vectors = vectors[self.once]

    def spread(self, slope: Tensor) -> Any:
        """Derivatives by the vectors as LAMMPS wants them: (all pairs, 3), zero for the others."""
        result = torch.zeros(len(self.once), 3, dtype=torch.float64)
        result[self.once] = slope
        return np.ascontiguousarray(result.numpy())

    def graph(self, species: Tensor) -> Graph:
        """The same as a graph, both directions, in a cell of 1 Å whose shifts are the vectors."""
        count = len(self.vectors)
        edges = torch.cat([self.ends, self.ends.flip(0)], dim=1)
        order = torch.argsort(edges[0], stable=True)
        rank = torch.argsort(order)
        reverse = torch.cat([torch.arange(count) + count, torch.arange(count)])
        return Graph(
            species=species,
            positions=torch.zeros(len(species), 3, dtype=torch.float64),
            cell=torch.eye(3, dtype=torch.float64),
            volume=torch.tensor(float("nan"), dtype=torch.float64),
            edges=edges[:, order].int(),
            shifts=torch.cat([self.vectors, -self.vectors])[order],
            reverse=rank[reverse[order]].int(),
        )


def _restored(content: bytes, rule: StopRule | None, uncertainty_every: int) -> UnifiedModel:
    return UnifiedModel(
        decode(content, device="cpu"), rule=rule, uncertainty_every=uncertainty_every
    )
