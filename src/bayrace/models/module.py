"""ANY torch module that maps a graph to energies of atoms, as a pure function of its weights.

A network that was made elsewhere becomes a model by a module with

    def forward(self, batch: GraphBatch) -> AtomicEnergies

that takes no derivatives itself and calls no `requires_grad_()`: forces and stress are ours, taken
outside (`bayrace.models.derivatives`). Where energies are linear in some weights, its last layer,
the module says what those multiply; `check_linear` tries whether that is true.

What posteriors call the parameters of such a model is its last layer alone, unless all weights are
asked for: the rest stays in the module, as it was made, and in no file of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from bayrace.core.graph import GraphBatch
from bayrace.core.noise import NO_NOISE, NoiseSpec
from bayrace.core.outputs import Heads, Params


class AtomicEnergies(NamedTuple):
    """What a module says of a batch."""

    energy: Tensor  # (N,) eV
    features: Tensor | None  # (N, D), energy = features @ last layer + what does not depend on it


class ModuleModel:
    """A module as a model; implements `NoisyModel`, `LinearModel` and `Shaped`."""

    rows_at_once = 1  # of a Jacobian: vmap made those of SevenNet and CHGNet 2 to 4 times slower

    def __init__(
        self,
        module: nn.Module,
        *,
        elements: Sequence[int],
        cutoff: float,
        last: Sequence[str] = (),
        every_weight: bool = False,
    ) -> None:
        """Names of parameters in `last`, one after another, are the last layer.

        The parameters of the model are those, or, with `every_weight` or without `last`, all.
        """
        known = dict(module.named_parameters())
        if missing := [name for name in last if name not in known]:
            raise ValueError(f"last={list(last)}: the module has no parameters {missing}")
        self.elements = tuple(elements)
        self.cutoff = float(cutoff)
        self.last = tuple(last)
        names = self.last if self.last and not every_weight else tuple(known)
        module = module.eval().requires_grad_(False)
        self.weights: Params = {name: known[name].detach().clone() for name in names}
        first = next(iter(known.values()))
        self.dtype = first.dtype  # of the module as it was made
        self._copies = {(first.dtype, first.device): module}

    @property
    def noise_spec(self) -> NoiseSpec:
        """It predicts no noise."""
        return NO_NOISE

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the parameters."""
        return {name: tuple(value.shape) for name, value in self.weights.items()}

    def init(
        self,
        seed: int,  # noqa: ARG002 - nothing is random: the module has been made
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Params:
        """The weights that the module came with, whatever the seed."""
        return {
            name: value.to(dtype=dtype, device=device, copy=True)
            for name, value in self.weights.items()
        }

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energies as a pure function of parameters and graph."""
        module = self._module(batch.positions)
        atomic, features = torch.func.functional_call(module, dict(params), (batch,))
        atomic = atomic.double()
        zero = atomic.new_zeros(batch.n_structures)
        energy = zero.index_add(0, batch.structure_index, atomic)
        return Heads(energy, atomic, None, None, None, features if self.last else None)

    def last_layer(self, params: Params) -> Tensor:
        """The weights that energies are linear in, (D,)."""
        self._refuse_without_last()
        return torch.cat([params[name].flatten() for name in self.last])

    def with_last_layer(self, params: Params, weights: Tensor) -> Params:
        """The same parameters with other weights (D,) there."""
        self._refuse_without_last()
        parts = torch.split(weights, [params[name].numel() for name in self.last])
        changed = {
            name: part.reshape(params[name].shape)
            for name, part in zip(self.last, parts, strict=True)
        }
        return {**params, **changed}

    def _module(self, like: Tensor) -> nn.Module:
        """The module in the precision and on the device of a tensor; made when first needed."""
        place = (like.dtype, like.device)
        if place not in self._copies:
            some = next(iter(self._copies.values()))
            with temporarily_clear_interpreter_stack():  # tensors of a transform end with it
                self._copies[place] = deepcopy(some).to(dtype=like.dtype, device=like.device)
        return self._copies[place]

    def _refuse_without_last(self) -> None:
        if not self.last:
            raise ValueError(
                "this module does not name a last layer in which its energies are linear; use an "
                "ensemble or SWAG for its uncertainty, or give ModuleModel(last=...)"
            )


def check_linear(
    model: ModuleModel, params: Params, batch: GraphBatch, *, tolerance: float = 1e-4, seed: int = 0
) -> float:
    """Move the last layer and see whether energies follow as its features say; ValueError if not.

    Returns the largest deviation of an atom's energy, over the largest change of one.
    """
    before = model.energy(params, batch)
    if before.last_features is None:
        raise ValueError("the module tells no features; return them as AtomicEnergies.features")
    weights = model.last_layer(params)
    if before.last_features.shape[-1] != weights.numel():
        raise ValueError(
            f"the module tells {before.last_features.shape[-1]} features, and its last layer has "
            f"{weights.numel()} weights; they must be one each"
        )
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(weights.shape, generator=generator, dtype=torch.float64).to(weights)
    step = random * weights.square().mean().sqrt().clamp(min=1e-3)
    after = model.energy(model.with_last_layer(params, weights + step), batch)
    assert after.last_features is not None
    change = after.atomic_energy - before.atomic_energy
    expected = before.last_features.double() @ step.double()
    scale = float(expected.abs().max().clamp(min=1e-12))
    deviation = max(
        float((change - expected).abs().max()) / scale,
        float(
            (after.last_features - before.last_features).abs().max()
            / before.last_features.abs().max()
        ),
    )
    if not deviation <= tolerance:
        raise ValueError(
            f"energies are not linear in {', '.join(model.last)}: they deviate by {deviation:.1e} "
            "of their change; name the parameters that the features multiply, or none"
        )
    return deviation


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """What a part of a network reads while this lasts, one tensor for each call of it."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        handle.remove()


def edge_vectors(batch: GraphBatch) -> Tensor:
    """r_ij = x_j - x_i + shift @ cell of every edge, (E, 3) Å."""
    receiver, sender = batch.edges
    offset = torch.einsum("ei,eij->ej", batch.shifts, batch.cell[batch.structure_index[receiver]])
    return batch.positions[sender] - batch.positions[receiver] + offset
