"""How alike two structures are: sorted distances of atoms, or features of the last layer.

Both are invariant to rotation, translation, reflection and permutation of like atoms. A descriptor
is scaled so that the Euclidean distance of two is a root mean square over its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import Frame, grouped
from bayrace.models.derivatives import evaluate
from bayrace.posterior.gaussian.last_layer import pooled_features, structure_features
from bayrace.potential.potential import Potential
from bayrace.select.acquire.interface import Array, Descriptors

MOST_ATOMS = 64
"""Of structures that are described by all their distances: at most 2016 numbers."""
_EDGES = 20_000  # of a batch
_BLOCK = 2**19  # numbers of a block of distances: 4 MB


def composition(frame: Frame) -> bytes:
    """Equal for structures of the same atoms in any order."""
    return np.sort(frame.numbers).tobytes()


def measurable(frame: Frame) -> bool:
    """Whether sorted distances describe it: a molecule that is not too large."""
    return not frame.pbc.any() and 2 <= len(frame.numbers) <= MOST_ATOMS


def sorted_distances(frame: Frame) -> Array:
    """Distances of all pairs of atoms, (n(n-1)/2,) Å/√pairs, sorted within each pair of elements.

    Structures of one composition have comparable ones; their Euclidean distance is then the root
    mean square change of a distance, in Å.
    """
    first, second = np.triu_indices(len(frame.numbers), 1)
    length = np.linalg.norm(frame.positions[first] - frame.positions[second], axis=1)
    pair = np.sort(np.stack([frame.numbers[first], frame.numbers[second]]), axis=0)
    order = np.lexsort((length, pair[1], pair[0]))
    found: Array = length[order] / np.sqrt(max(len(length), 1))
    return found


def last_layer_features(potential: Potential, frames: Sequence[Frame]) -> Array | None:
    """Last hidden activations of the first weight sample, summed over atoms, (S, D).

    None where the model's energies are not linear in a last layer.
    """
    model = potential.model
    params = {name: value[0] for name, value in potential.folded.items()}
    rows: list[Array] = []
    for group in _groups(potential, frames):
        graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in group]
        batch = collate(
            graphs,
            elements_count=len(model.elements),
            dtype=potential.dtype,
            device=potential.device,
        )
        with torch.no_grad():
            outputs = evaluate(model, params, batch, forces=False)
        if outputs.last_features is None:
            return None
        rows.append(structure_features(batch, pooled_features(outputs)).numpy(force=True))
    return np.concatenate(rows) if rows else None


def standardise(points: Array, known: Array | None) -> tuple[Descriptors, Array | None]:
    """Features in standard deviations of the training set, or of the pool if that has fewer than 2.

    Scaled to root mean squares; features that do not vary are left out.
    """
    measured = known if known is not None and len(known) > 1 else points
    spread = measured.std(0)
    varies = spread > 1e-6 * max(float(spread.max(initial=0.0)), 1e-300)
    scale = spread[varies] * np.sqrt(max(int(varies.sum()), 1))
    inside = None if known is None else known[:, varies] / scale
    return (points[:, varies] / scale).astype(np.float32), inside


def nearest(points: Array | Descriptors, others: Array | Descriptors) -> Array:
    """Distance of each point (P, G) to the nearest of others (T, G); inf if there are none."""
    found = np.full(len(points), np.inf)
    others = others.astype(np.float64)
    squares = np.einsum("tg,tg->t", others, others)
    step = max(1, _BLOCK // max(1, len(others), points.shape[1]))
    for start in range(0, len(points), step):
        block = points[start : start + step].astype(np.float64)
        if len(others) > 16:  # by products: fast, exact to 1e-8 of the size of the descriptors
            square = np.einsum("pg,pg->p", block, block)[:, None] + squares - 2 * block @ others.T
            found[start : start + step] = np.sqrt(np.maximum(square.min(1), 0.0))
            continue
        for other in others:
            length = np.linalg.norm(block - other, axis=1)
            found[start : start + step] = np.minimum(found[start : start + step], length)
    return found


def _groups(potential: Potential, frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """Consecutive frames of about `_EDGES` edges, judged by the training data."""
    per = float(potential.statistics.get("mean_neighbours", 30.0))
    return grouped(frames, most_atoms=_EDGES / per)
