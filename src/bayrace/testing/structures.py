"""Structures and networks for tests: small, random and the same for every seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.protocols import Model
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import Frame, bare_frame
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.spec import RaceSpec

Floats = npt.NDArray[np.float64]


def random_frame(
    elements: tuple[int, ...],
    atoms: int,
    *,
    seed: int,
    cell: Floats | None = None,
    pbc: tuple[bool, bool, bool] = (True, True, True),
    apart: float = 0.9,
) -> Frame:
    """A structure without labels whose atoms are at least `apart` Å from each other.

    Without a cell it is a molecule of liquid-like density.
    """
    random = np.random.default_rng(seed)
    periodic = cell is not None
    box = cell if cell is not None else np.eye(3) * (8.0 * atoms) ** (1 / 3)
    placed = np.empty((0, 3))
    shifts = np.stack(np.meshgrid(*[(-1, 0, 1)] * 3, indexing="ij"), -1).reshape(-1, 3) @ box
    while len(placed) < atoms:
        candidate = random.random(3) @ box
        images = shifts if periodic else np.zeros((1, 3))
        gaps = np.linalg.norm(placed[:, None] + images - candidate, axis=-1)
        if gaps.min(initial=np.inf) > apart:
            placed = np.vstack([placed, candidate])
    return bare_frame(
        random.choice(np.asarray(elements), atoms).astype(np.int64),
        placed,
        box if periodic else np.zeros((3, 3)),
        np.asarray(pbc if periodic else (False, False, False)),
        source="random",
        index=seed,
    )


def small_spec(elements: tuple[int, ...], **changes: Any) -> RaceSpec:
    """A network that is as small as it can be and still has every part; `changes` go on top."""
    values: dict[str, Any] = {
        "elements": elements,
        "cutoff": 4.0,
        "mean_neighbours": 6.0,
        "layers": 2,
        "hidden": "4x0e+4x1o+4x2e",
        "features": 4,
        "l_max": 2,
        "radial_basis": 4,
        "envelope_power": 2,
        "radial_hidden": (8,),
        "radial_knots": 0,
        "readout_hidden": 8,
        "neighbour_norm": "sqrt",
        "activation": "identity",
        "gate": False,
        "self_contraction": False,
        "pair_radial": False,
        "noise": NoiseSpec("joint", "extensive", "equivariant", stress=False),
        "scale": 0.5,
        "shift": (0.0,) * len(elements),
    }
    return RaceSpec(**(values | changes))


def graph_of(model: Model, *frames: Frame) -> GraphBatch:
    """A float64 batch of frames for a model."""
    graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in frames]
    return collate(graphs, elements_count=len(model.elements), dtype=torch.float64, device="cpu")
