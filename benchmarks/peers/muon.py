"""Muon for the peers, so that networks can be compared with the optimiser that bayrace has.

e3nn keeps the matrices of a linear map or tensor product in one flat parameter; the instructions of
its module tell their shapes. What is no matrix of at least 8 x 8 has AMSGrad, with the groups and
weight decays of its package. Torch only: the environments of the peers have no bayrace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST = 8  # of either side of a matrix
MOMENTUM = 0.95
RMS = 0.2  # of an update, in units of the learning rate, as Adam's
POLYNOMIALS = (
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
)  # those of bayrace.train.muon


@dataclass(frozen=True)
class Block:
    """Matrices inside a parameter: its entries from `start` on, in this shape."""

    start: int
    shape: tuple[int, ...]  # in, out; in, second factor, out of a tensor product

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        return min(self.shape[0], self.shape[-1]) >= LEAST


def blocks(model: torch.nn.Module) -> dict[Tensor, list[Block]]:
    """The matrices of every parameter that consists of such, and of nothing else."""
    found: dict[Tensor, list[Block]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.ndim == 2:
                own = [Block(0, tuple(parameter.shape))]
            else:
                own = flat(getattr(module, "instructions", []))
            covered = bool(own) and own[-1].stop == parameter.numel()
            if covered and all(block.is_matrix for block in own):
                found[parameter] = own
    return found


def flat(instructions: list[Any]) -> list[Block]:
    """The matrices of e3nn's instructions, one after another."""
    found: list[Block] = []
    for each in instructions:
        shape = tuple(getattr(each, "path_shape", ()))
        if len(shape) not in (2, 3):
            return []
        found.append(Block(found[-1].stop if found else 0, shape))
    return found


class Muon:
    """Muon for the matrices of a model, and AMSGrad for its other parameters."""

    def __init__(self, model: torch.nn.Module, groups: list[dict[str, Any]]) -> None:
        known = blocks(model)
        self.rates: list[dict[str, Any]] = []  # of the groups of matrices
        others = []
        for group in groups:
            every = list(group["params"])
            self.rates.append({**group, "params": [p for p in every if p in known]})
            others.append({**group, "params": [p for p in every if p not in known]})
        self.blocks = known
        self.momentum = {p: torch.zeros_like(p) for group in self.rates for p in group["params"]}
        self.adam = torch.optim.Adam([g for g in others if g["params"]], amsgrad=True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All of them, whose `lr` a schedule may change."""
        return [*self.rates, *self.adam.param_groups]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        self.adam.zero_grad(set_to_none=set_to_none)
        for parameter in self.momentum:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.adam.step()
        for group in self.rates:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group["lr"], group.get("weight_decay", 0.0))

    def _move(self, parameter: Tensor, lr: float, decay: float) -> None:
        assert parameter.grad is not None
        momentum = self.momentum[parameter].lerp_(parameter.grad, 1 - MOMENTUM)
        ahead = torch.lerp(parameter.grad, momentum, MOMENTUM).flatten()
        parameter.mul_(1 - lr * decay)
        entries = parameter.data.view(-1)
        for block in self.blocks[parameter]:
            matrices = matrix_view(ahead[block.start : block.stop], block.shape)
            size = RMS * math.sqrt(max(matrices.shape[-2:]))
            place = matrix_view(entries[block.start : block.stop], block.shape)
            place.sub_(orthogonal(matrices), alpha=lr * size)


def matrix_view(entries: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(in, out), or (second, in, out) for the path of a tensor product."""
    return entries.view(shape) if len(shape) == 2 else entries.view(shape).transpose(0, 1)


def orthogonal(matrices: Tensor) -> Tensor:
    """(..., m, n) with all singular values near 1: Newton and Schulz."""
    wide = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    x = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-30)
    for a, b, c in POLYNOMIALS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrices.shape[-2] > matrices.shape[-1] else x
