"""The posterior predictive: weight samples evaluated on batches, moments taken in float64.

Means and sums are float64 whatever the model's dtype: one float32 ulp at 17 660 eV is 2 meV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Outputs, Params
from bayrace.core.prediction import Prediction
from bayrace.core.protocols import ClosedForm, Differentiated, Model, Novel, SideBySide
from bayrace.core.target import target_of
from bayrace.data.batch import Graph, build_graph, collate, repeated
from bayrace.data.frame import Frame
from bayrace.models.noise import Lambdas, NoiseSpec, noise_spec_of
from bayrace.models.noise import noise as noise_of
from bayrace.predict.moments import mixture
from bayrace.predict.parts import evaluate_large
from bayrace.predict.single import Noise, single

References = Mapping[int, float] | Tensor
"""Energy of each isolated atom in eV: {Z: E0}, or float64 in the order of the elements, (Z,).

Members that differ in them have (M, Z).
"""

Uncertainty = Literal["full", "energy", "none"]
"""How much of it to compute; "energy" spares closed forms the derivatives of their features."""


@dataclass(frozen=True, eq=False)
class Predictive:
    """A network with the weights that its predictions are averaged over."""

    model: Model
    members: Params  # stacked along a leading dimension M
    references: References
    lambdas: Lambdas  # weights of the loss, which scale the noise
    closed: ClosedForm | None = None  # knows the epistemic part itself; the one member is its mean

    @cached_property
    def first(self) -> Params:
        """The weights of the first member, which may be the only one."""
        return {name: value[0] for name, value in self.members.items()}

    @cached_property
    def count(self) -> int:
        """How many members there are."""
        return next(iter(self.members.values())).shape[0]

    @cached_property
    def side_by_side(self) -> bool:
        """Whether members are evaluated as one batch."""
        model = self.model
        return isinstance(model, SideBySide) and model.side_by_side(self.members)

    @cached_property
    def noise(self) -> NoiseSpec:
        """What the heads of the model mean."""
        return noise_spec_of(self.model)

    @cached_property
    def origin(self) -> Tensor:
        """Energies of isolated atoms in the order of the elements."""
        return reference_tensor(self.references, self.model.elements)


def predict(
    source: Predictive,
    batch: GraphBatch,
    *,
    stress: bool = False,
    uncertainty: Uncertainty = "full",
    chunk_size: int | None = None,
    novelty: bool = False,
) -> Prediction:
    """Predictive moments of a batch, in file order, float64, references included.

    Members are evaluated together, `chunk_size` of them at a time (as many as are quickest, if
    None). For "energy" a closed form leaves the variances of forces and stress nan, which may be
    much cheaper. With "none" all variances are zero. `novelty` asks for that of each structure too.
    """
    model, members, closed = source.model, source.members, source.closed
    noisy = uncertainty != "none"

    def one(params: Params, graph: GraphBatch = batch) -> dict[str, Tensor]:
        outputs = evaluate_large(model, params, graph, stress=stress)
        return _values(source, outputs, graph, noisy=noisy)

    with torch.no_grad():
        if source.count == 1 or (closed is not None and noisy):
            return _of_one(source, batch, stress=stress, uncertainty=uncertainty, novelty=novelty)
        if source.side_by_side:
            values = _side_by_side(one, members, batch, chunk_size, compiled=_quick(model, batch))
        else:
            stacked: Params = torch.func.vmap(one, chunk_size=chunk_size)(members)
            values = {name: value.double() for name, value in stacked.items()}
        return mixture(values, batch, source.origin, mean=_mean_pooled(source))


def _of_one(
    source: Predictive,
    batch: GraphBatch,
    *,
    stress: bool,
    uncertainty: Uncertainty,
    novelty: bool,
) -> Prediction:
    """By the only member, or by the mean of a closed form."""
    outputs = evaluate_large(source.model, source.first, batch, stress=stress)
    closed, spread, novel = source.closed, None, None
    noisy, full = uncertainty != "none", uncertainty == "full"
    if closed is not None and noisy:
        known = (source.model, source.first, batch, outputs)
        spread = closed.spread(*known, forces=full, stress=stress and full)
        if novelty and isinstance(closed, Novel):
            novel = closed.novelty(batch, outputs)
    noise = Noise(source.noise, source.lambdas) if noisy else None
    mean = _mean_pooled(source)
    found = None if mean else single(outputs, batch, source.origin, noise, spread)
    if found is None:
        values = _alone(_values(source, outputs, batch, noisy=noisy))
        found = mixture(values, batch, source.origin, mean=mean, spread=spread)
    return found if novel is None else replace(found, novelty=novel)


def _mean_pooled(source: Predictive) -> bool:
    return target_of(source.model).pooling == "mean"


def predict_frames(
    source: Predictive,
    frames: Iterable[Frame],
    *,
    stress: bool = False,
    uncertainty: Uncertainty = "full",
    chunk_size: int | None = None,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[list[Frame], Prediction]]:
    """Predict any number of frames in bounded memory, a batch of consecutive frames at a time.

    A batch holds at most `edge_budget` edges, or one frame where a single one exceeds that.
    `progress` is called after each batch with the number of frames done so far. Computation
    follows the dtype and device of the members.
    """
    model, like = source.model, next(iter(source.members.values()))
    done = 0
    for group in _by_edges(frames, model, edge_budget):
        batch = collate(
            [graph for _, graph in group],
            elements_count=len(model.elements),
            dtype=like.dtype,
            device=like.device,
        )
        prediction = predict(
            source,
            batch,
            stress=stress,
            uncertainty=uncertainty,
            chunk_size=chunk_size,
            novelty=True,
        )
        yield [frame for frame, _ in group], prediction
        done += len(group)
        if progress is not None:
            progress(done)


class NotFiniteError(ValueError):
    """A prediction that is no number; the message says which."""


def refuse_not_finite(
    prediction: Prediction,
    *,
    uncertainty: Uncertainty,
    periodic: Tensor | None,
    forces: bool = True,
) -> Prediction:
    """The same prediction, if its numbers are: nan must not pass for a result.

    `periodic` (S,) tells the structures that have a stress, None where nobody asked for one;
    `forces` is off where the target has none. Variances that were not computed, and those of a
    stress, may be nan; so may one that is nan throughout, as it is not modelled.
    """
    stress = prediction.stress
    parts = {
        "energy": prediction.energy.mean,
        "force": prediction.forces.mean if forces else None,
        "stress": None if stress is None else stress.mean[periodic],
        "variance of the energy": prediction.energy.total,
        "covariance of the force": prediction.forces.total if uncertainty == "full" else None,
    }
    for name, value in parts.items():
        if value is None or math.isfinite(value.sum()) or bool(torch.isfinite(value).all()):
            continue  # the sum alone is quicker
        if "variance" not in name or not bool(value.isnan().all()):
            finite = torch.isfinite(value).reshape(len(value), -1).all(1)
            place = int(finite.logical_not().nonzero()[0, 0])
            of = "atom" if "force" in name else "structure"
            raise NotFiniteError(
                f"the {name} of {of} {place} is not finite; such a structure is far from all that "
                "the potential has learnt, or the potential is damaged: check both"
            )
    return prediction


def reference_tensor(references: References, elements: tuple[int, ...]) -> Tensor:
    """Isolated-atom energies (Z,) or (M, Z), float64 eV, in the order of `elements`."""
    if isinstance(references, Tensor):
        return references.to(torch.float64)
    missing = [z for z in elements if z not in references]
    if missing:
        raise ValueError(
            f"no reference energy for atomic numbers {missing}, only for {sorted(references)}; "
            "add them to the references"
        )
    return torch.tensor([references[z] for z in elements], dtype=torch.float64)


def _values(
    source: Predictive, outputs: Outputs, batch: GraphBatch, *, noisy: bool
) -> dict[str, Tensor]:
    """Means and, if `noisy`, noise variances of one weight sample, by name."""
    values = {"atomic": outputs.atomic_energy, "forces": outputs.forces}
    if outputs.stress is not None:
        values["stress"] = outputs.stress
    if noisy and source.noise.kind != "none":
        spread = noise_of(outputs, batch, source.noise, source.lambdas)._asdict()
        values |= {f"{name}_noise": value for name, value in spread.items() if value is not None}
    return values


def _quick(model: Model, batch: GraphBatch) -> bool:
    """Whether members are evaluated by a compiled network, which shares the graph itself."""
    if batch.positions.device.type != "cpu" or not isinstance(model, Differentiated):
        return False
    return target_of(model).is_energy and model.quick(batch.positions.dtype)


def _alone(values: Params) -> dict[str, Tensor]:
    """Outputs of the only member as those of one, (1, ...), in float64."""
    return {name: value.double().unsqueeze(0) for name, value in values.items()}


def _side_by_side(
    one: Callable[[Params, GraphBatch], dict[str, Tensor]],
    members: Params,
    batch: GraphBatch,
    chunk_size: int | None,
    *,
    compiled: bool,
) -> dict[str, Tensor]:
    """Outputs of every member stacked (M, ...), in float64: a batch with copies for several."""
    count = next(iter(members.values())).shape[0]
    most = _ATOMS // max(1, batch.n_atoms) if compiled else _EDGES // max(1, batch.reverse.shape[0])
    size = min(count, chunk_size or max(1, most))
    copies = {
        here: repeated(batch, here, edges=not compiled) for here in {size, count % size} if here > 1
    }
    parts: list[dict[str, Tensor]] = []
    for start in range(0, count, size):
        here = min(size, count - start)
        if here == 1:
            values = one({name: value[start] for name, value in members.items()}, batch)
        else:
            values = one({k: v[start : start + here] for k, v in members.items()}, copies[here])
        parts.append({k: v.double().reshape(here, -1, *v.shape[1:]) for k, v in values.items()})
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


_EDGES = 30_000  # of a batch with copies: large enough to fill the machine, small enough for caches
_ATOMS = 50_000  # of all copies where edges are not copied: their results are about 1 kB each


def _by_edges(
    frames: Iterable[Frame], model: Model, budget: int
) -> Iterator[list[tuple[Frame, Graph]]]:
    """Consecutive frames with their graphs, grouped to at most `budget` edges."""
    group: list[tuple[Frame, Graph]] = []
    edges = 0
    for frame in frames:
        graph = build_graph(frame, elements=model.elements, cutoff=model.cutoff)
        count = graph.edges.shape[1]
        if group and edges + count > budget:
            yield group
            group, edges = [], 0
        group.append((frame, graph))
        edges += count
    if group:
        yield group
