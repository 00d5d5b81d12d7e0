"""What a Gaussian over the last layer's weights says of energies, forces and stress, exactly.

Energies are linear in the last hidden activations, E = φ · w + constants, so a covariance A Aᵀ of
the weights gives var(E) = |Aᵀφ|². Forces are the derivatives of φ · w and so are linear in w too:
their covariance needs one backward pass for each of the K columns of A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs, Params
from bayrace.core.protocols import LinearModel, Model
from bayrace.core.target import target_of
from bayrace.models.derivatives import jacobian, rows_at_once, strained, voigt_stress


@dataclass(frozen=True, eq=False)
class LastLayer:
    """Weights of which those of the last layer are uncertain, with covariance factor @ factor.T."""

    params: Params  # the mean, without a leading dimension
    places: Tensor  # (D,) int64, see `last_layer_places`
    factor: Tensor  # (D, K) float64, whatever the dtype of the weights
    forces_factor: Tensor | None = None  # (D, J) in its place for forces and stress, if cheaper

    def mean(self) -> Params:
        """The mean weights with a leading dimension of length 1."""
        return {name: value.unsqueeze(0) for name, value in self.params.items()}

    def shifted(self, shifts: Tensor) -> Params:
        """Weights whose last layer differs from the mean by `shifts` (n, D), stacked (n, ...)."""
        ordered = sorted(self.params.items())  # a file need not keep the order of names
        flat = torch.cat([value.flatten() for _, value in ordered])
        stacked = flat.repeat(len(shifts), 1).index_add(1, self.places, shifts.to(flat))
        parts = torch.split(stacked, [value.numel() for _, value in ordered], dim=1)
        return {
            name: part.reshape(-1, *value.shape)
            for part, (name, value) in zip(parts, ordered, strict=True)
        }

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else draws of the Gaussian."""
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1")
        return self.mean() if samples == 1 else self.sample(samples, seed=seed)

    def sample(self, samples: int, *, seed: int) -> Params:
        """Draws of the Gaussian, stacked."""
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(samples, self.factor.shape[1], generator=generator, dtype=_REAL)
        return self.shifted(normal.to(self.factor.device) @ self.factor.T)

    def spread(
        self,
        model: Model,
        params: Params,
        batch: GraphBatch,
        outputs: Outputs,
        *,
        forces: bool,
        stress: bool,
    ) -> EpistemicVariances:
        """Variances of a batch: energies exactly, forces and stress by their own factor if any."""
        known = (model, params, batch, outputs)
        if self.forces_factor is None or not (forces or stress):
            return last_layer_spread(self.factor, *known, forces=forces, stress=stress)
        exact = last_layer_spread(self.factor, *known, forces=False, stress=False)
        rest = last_layer_spread(self.forces_factor, *known, forces=forces, stress=stress)
        return rest._replace(energy=exact.energy, atomic=exact.atomic)

    def tensors(self) -> Params:
        """Everything, by names that `restore` knows."""
        own = {"places": self.places, "factor": self.factor}
        if self.forces_factor is not None:
            own["forces_factor"] = self.forces_factor
        return own | {f"params/{name}": value for name, value in self.params.items()}

    @classmethod
    def restore(cls, tensors: Params) -> Self:
        """What `tensors` came from."""
        params = {
            name.removeprefix("params/"): value
            for name, value in tensors.items()
            if name.startswith("params/")
        }
        return cls(params, tensors["places"], tensors["factor"], tensors.get("forces_factor"))

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """On another device; the dtype is that of the weights."""
        forces = self.forces_factor
        return type(self)(
            {name: value.to(device=device, dtype=dtype) for name, value in self.params.items()},
            self.places.to(device=device),
            self.factor.to(device=device),
            None if forces is None else forces.to(device=device),
        )


_REAL = torch.float64


def last_layer_places(model: LinearModel, params: Params) -> Tensor:
    """Where the last layer's weights stand among all, flattened in order of names, (D,) int64."""
    ordered = sorted(params.items())
    sizes = [value.numel() for _, value in ordered]
    device = next(iter(params.values())).device
    numbered = torch.split(torch.arange(sum(sizes), dtype=_REAL, device=device), sizes)
    named = {
        name: part.reshape(value.shape)
        for part, (name, value) in zip(numbered, ordered, strict=True)
    }
    return model.last_layer(named).round().to(torch.int64)


class FeatureDerivatives(NamedTuple):
    """Derivatives of features of structures, of the units of a force and a stress by weight."""

    forces: Tensor  # (K, N, 3) float64, -∂φ_k/∂x
    stress: Tensor | None  # (K, S, 6) float64, (1/V) ∂φ_k/∂strain; nan where not fully periodic


def pooled_features(outputs: Outputs) -> Tensor:
    """What each atom adds to the features of its structure, (N, D): most often its own."""
    hidden = _hidden(outputs.last_features)
    return hidden if outputs.share is None else hidden * outputs.share.to(hidden).unsqueeze(-1)


def structure_features(batch: GraphBatch, hidden: Tensor) -> Tensor:
    """Features of structures from those that atoms add (N, D): (S, D) float64."""
    return batch.summed(hidden.double())


def feature_derivatives(
    model: Model,
    params: Params,
    batch: GraphBatch,
    *,
    factor: Tensor | None = None,
    stress: bool = False,
) -> FeatureDerivatives:
    """Forces and stresses of the features, or of the combinations φ · A by a `factor` A (D, K).

    By a backward pass for each of them, or, where that is quicker, for each coordinate of an atom.
    """
    with torch.enable_grad():
        hidden, leaves = _features_of(model, params, batch, stress=stress)
        columns = hidden.shape[-1] if factor is None else factor.shape[1]
        each = rows_at_once(model)
        if _coordinate_passes(batch, stress=stress) < columns:
            return _by_coordinate(hidden, leaves, batch, factor=factor, at_once=each)
        features = hidden if factor is None else hidden @ factor.to(hidden)
        total = features.sum(0)  # structures do not see each other, so neither do their derivatives
        rows = list(jacobian(total, leaves, torch.eye(len(total)), at_once=each))
    forces = -torch.cat([row["positions"] for row in rows]).double()
    if not stress:
        return FeatureDerivatives(forces, None)
    virial = torch.cat([row["strain"] for row in rows]).double()
    return FeatureDerivatives(forces, torch.stack([voigt_stress(v, batch) for v in virial]))


def projected_derivatives(
    model: LinearModel,
    params: Params,
    batch: GraphBatch,
    directions: Tensor,
    *,
    stress: bool = False,
) -> Tensor:
    """Forces of the features along directions (K, N, 3), summed over each structure: (K, S, D).

    With `stress` along directions (K, S, 6) of the stress, Voigt components. Differentiates twice,
    which costs a pass per direction, however many features there are; where there are no more
    features or coordinates than directions, once by each of those.
    """
    exact = min(model.last_layer(params).numel(), _coordinate_passes(batch, stress=stress))
    if exact <= _PASS * len(directions):
        slopes = feature_derivatives(model, params, batch, stress=stress)
        if slopes.stress is not None:
            return torch.einsum("dsv,ksv->ksd", slopes.stress, directions)
        along = torch.einsum("dni,kni->nkd", slopes.forces, directions)
        return batch.summed(along).transpose(0, 1)
    with torch.enable_grad():
        hidden, leaves = _features_of(model, params, batch, stress=stress)
        each = rows_at_once(model)
        wanted = "strain" if stress else "positions"
        return _along(hidden, {wanted: leaves[wanted]}, batch, directions.flatten(1), at_once=each)


_PASS = 1.5  # what a pass costs that differentiates a second time, over one that does so once


def _coordinate_passes(batch: GraphBatch, *, stress: bool) -> float:
    """What derivatives by every coordinate cost, in backward passes of a feature."""
    return _PASS * (3 * int(batch.atom_counts().max()) + (6 if stress else 0))


def _features_of(
    model: Model, params: Params, batch: GraphBatch, *, stress: bool
) -> tuple[Tensor, Params]:
    """Features of atoms (N, D), and the positions and strain that they are differentiated by."""
    positions = batch.positions.detach().requires_grad_()
    moved, leaves = replace(batch, positions=positions), {"positions": positions}
    if stress:
        leaves["strain"] = torch.zeros_like(batch.cell, requires_grad=True)
        moved = strained(moved, leaves["strain"])
    detached = {name: value.detach() for name, value in params.items()}
    return _hidden(model.energy(detached, moved).last_features), leaves


def _by_coordinate(
    hidden: Tensor, leaves: Params, batch: GraphBatch, *, factor: Tensor | None, at_once: int
) -> FeatureDerivatives:
    """By the first atoms of all structures at once, then the second ones, and so on."""
    structure, most = batch.structure_index, int(batch.atom_counts().max())
    order = torch.argsort(structure, stable=True)
    first = batch.atom_counts().cumsum(0) - batch.atom_counts()
    place = torch.empty_like(structure)  # (N,) of an atom in its structure
    place[order] = torch.arange(len(structure), device=structure.device) - first[structure[order]]
    atoms = torch.arange(len(structure), device=structure.device)
    directions = torch.zeros(most, 3, batch.n_atoms, 3, dtype=_REAL, device=structure.device)
    directions[place, :, atoms] = torch.eye(3, dtype=_REAL, device=structure.device)
    along = directions.reshape(3 * most, -1)
    if "strain" in leaves:
        unit = torch.eye(6, dtype=_REAL, device=structure.device).repeat(1, batch.n_structures)
        blocks = (along, along.new_zeros(len(along), unit.shape[1]))
        below = (unit.new_zeros(6, along.shape[1]), unit)
        along = torch.cat([torch.cat(blocks, dim=1), torch.cat(below, dim=1)])
    rows = _along(hidden, leaves, batch, along, at_once=at_once)  # (3 most + 6, S, D)
    rows = rows if factor is None else rows @ factor.double()
    parts = rows[: 3 * most].reshape(most, 3, *rows.shape[1:])
    forces = parts[place, :, structure].permute(2, 0, 1)
    if "strain" not in leaves:
        return FeatureDerivatives(forces, None)
    stress = rows[3 * most :].permute(2, 1, 0)
    missing = batch.volume.isnan()[None, :, None]
    return FeatureDerivatives(forces, stress.masked_fill(missing, torch.nan))


def _along(
    hidden: Tensor, leaves: Params, batch: GraphBatch, directions: Tensor, *, at_once: int
) -> Tensor:
    """Features' derivatives by the leaves, forces before stress, along directions: (K, S, D)."""
    # the slope of φ · u is linear in u, and its derivative by u is that of the features
    weights = hidden.new_zeros(batch.n_structures, hidden.shape[-1]).requires_grad_()
    energy = (hidden * weights[batch.structure_index]).sum()
    slopes = torch.autograd.grad(energy, list(leaves.values()), create_graph=True)
    values = [
        voigt_stress(slope, batch).flatten() if name == "strain" else -slope.flatten()
        for name, slope in zip(leaves, slopes, strict=True)
    ]
    rows = jacobian(torch.cat(values), {"weights": weights}, directions, at_once=at_once)
    return torch.cat([row["weights"].double() for row in rows])


def last_layer_spread(
    factor: Tensor,
    model: Model,
    params: Params,
    batch: GraphBatch,
    outputs: Outputs,
    *,
    forces: bool,
    stress: bool,
) -> EpistemicVariances:
    """Variances of a batch for the weight covariance `factor` @ `factor`.T, a factor (D, K).

    Energies cost a product of matrices; forces and stress K backward passes.
    """
    hidden = pooled_features(outputs)
    energy = (structure_features(batch, hidden) @ factor.double()).square().sum(-1)
    atomic = (hidden.double() @ factor.double()).square().sum(-1)
    if not (forces or stress) or not target_of(model).is_energy:
        return EpistemicVariances(energy, None, None, atomic)
    slopes = feature_derivatives(model, params, batch, factor=factor, stress=stress)
    return EpistemicVariances(
        energy,
        torch.einsum("kni,knj->nij", slopes.forces, slopes.forces) if forces else None,
        None if slopes.stress is None else torch.einsum("ksi,ksj->sij", *[slopes.stress] * 2),
        atomic,
    )


def _hidden(hidden: Tensor | None) -> Tensor:
    if hidden is None:
        raise ValueError(
            "this model's energies are not linear in its last hidden activations (activation "
            "relu); use an ensemble or SWAG, or a model with activation: identity"
        )
    return hidden
