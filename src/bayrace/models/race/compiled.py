"""The whole network as one compiled call: energies, noise heads, forces, and their gradients.

What `evaluate` wants of a batch is one call, the gradients of a training step are a second one, and
PyTorch sees one operation. Networks and batches that the program does not know go the way of
`bayrace.models.race.network`, and so do higher derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.models.derivatives import strained
from bayrace.models.race.arrays import Prepared, empty_results, first_copy, identity
from bayrace.models.race.radial import TABLE
from bayrace.models.race.readout import Readout, hidden_factor
from bayrace.models.race.spec import RaceSpec
from bayrace.models.race.tape import Writer, supported
from bayrace.nn.compiler import CompilerError
from bayrace.nn.kernels import DTYPES, Kernel, chosen_kernel
from bayrace.nn.program.engine import Integers, Program, Sizes, UnsupportedError
from bayrace.nn.program.operations import GeometryBack
from bayrace.nn.program.tape import Value
from bayrace.nn.tables import inside_transforms

# parts of a program: geometry, all results, their reverse, and matrices turned beforehand
_SHARED, _ENERGY, _GRADIENTS, _TURNED = range(4)
_KEPT = 4  # sets of weights that are kept as a program takes them


class Results(NamedTuple):
    """What a run gives, in the order of the batch's atoms."""

    numbers: Tensor  # (N, H), energy in units of the scale, then the heads, summed over layers
    hidden: Tensor  # (N, D), what the energy is linear in
    repulsion: Tensor  # eV, (N,), of pairs that are too close
    gradient: Tensor  # eV/Å, (N, 3), of the energy by positions
    virial: Tensor  # eV, (S, 3, 3), by a symmetric strain


Readouts = Callable[[Params, GraphBatch], tuple[list[Readout], Tensor | None]]
"""What every layer says and the repulsion, by PyTorch."""


class CompiledRace:
    """Programs of a network, written when they are first asked for."""

    def __init__(self, spec: RaceSpec, kernel: Kernel, readouts: Readouts) -> None:
        self.spec, self.kernel, self._readouts = spec, kernel, readouts
        self._known = supported(spec)
        self._programs: dict[tuple[torch.dtype, bool, bool], _Written | None] = {}

    def __call__(self, params: Params, batch: GraphBatch) -> Results | None:
        """The results, differentiable once in the parameters; None where there is no program.

        Folded weights of M members, (M, ...) each, go with a batch that is `repeated` M times.
        """
        first = params["embedding"]
        members = first.shape[0] if first.ndim > 2 else 1
        if not self._takes(first, batch, members):
            return None
        folded = f"layer1.{TABLE}" in params
        learning = torch.is_grad_enabled() and any(p.requires_grad for p in params.values())
        if (folded and learning) or (first.ndim > 2 and not folded):
            return None
        written = self.program(first.dtype, folded=folded, learning=learning)
        if written is None:
            return None
        if not learning:
            return written.evaluate(params, batch, members)[0]
        names = tuple(written.params)
        given = (params[name] for name in names)
        return Results(*_evaluate(self, written, batch, names, *given))

    def program(self, dtype: torch.dtype, *, folded: bool, learning: bool) -> _Written | None:
        """The program for parameters of this kind, built now if need be; None if there is none."""
        key = (dtype, folded, learning)
        if not self._known or dtype not in DTYPES or chosen_kernel(self.kernel) == "plain":
            return None
        if key not in self._programs:
            try:
                self._programs[key] = _written(self.spec, *key)
            except (CompilerError, UnsupportedError):
                self._programs[key] = None
        return self._programs[key]

    def by_torch(self, params: Params, batch: GraphBatch) -> Results:
        """The same by PyTorch, differentiable in the parameters to any order."""
        positions = batch.positions.detach().requires_grad_()
        strain = torch.zeros_like(batch.cell, requires_grad=True)
        moved = strained(replace(batch, positions=positions), strain)
        readouts, repulsion = self._readouts(params, moved)
        numbers = torch.stack([each.numbers for each in readouts]).sum(0)
        energy = numbers[:, 0].sum() * self.spec.scale
        if repulsion is None:
            repulsion = numbers.new_zeros(batch.n_atoms)
        gradient, virial = torch.autograd.grad(
            energy + repulsion.sum(), (positions, strain), create_graph=True, materialize_grads=True
        )
        hidden = torch.cat([each.hidden for each in readouts], dim=-1) * hidden_factor(self.spec)
        return Results(numbers, hidden, repulsion.detach(), gradient, virial)

    def _takes(self, like: Tensor, batch: GraphBatch, members: int) -> bool:
        here = like.device.type == "cpu" and batch.positions.device.type == "cpu"
        return (
            here
            and batch.positions.dtype == like.dtype
            and len(batch.species_counts) == len(self.spec.elements) * members
            and not inside_transforms()
            and not torch.compiler.is_compiling()
        )


@dataclass(frozen=True, eq=False)
class _Run:
    """What the reverse of an evaluation needs; not its results, which hold on to this."""

    table: Integers
    sizes: Sizes
    held: tuple[Any, ...]  # arrays whose addresses are in the table


@dataclass(frozen=True, eq=False)
class _Written:
    """A program, and which of its arrays are what."""

    program: Program
    writer: Writer
    params: Mapping[str, Value]
    results: tuple[Value, ...]
    cotangents: tuple[Value, ...]  # of numbers, gradient and virial
    gradients: Mapping[str, Value]  # of the parameters
    turned: tuple[Value, ...]  # transposed matrices of weights that do not change
    kept: list[Prepared] = field(default_factory=list)

    def evaluate(self, params: Params, batch: GraphBatch, members: int = 1) -> tuple[Results, _Run]:
        """Run all but the last part, once for each member."""
        batch = batch if members == 1 else first_copy(batch, members)
        weights = self._prepared(params, members)
        graph = self._graph(batch)
        results = empty_results(self.results, batch, members)
        named = dict(zip(self.results, results, strict=True))
        table = self.program.table(graph | named, start=weights.table)
        sizes = Sizes(
            threads=torch.get_num_threads(),
            atoms=batch.n_atoms,
            pairs=batch.pair_edges.shape[1],
            edges=batch.edges.shape[1],
            structures=batch.n_structures,
        )
        shared = self.program.run(_SHARED, table, sizes)
        own = weights.arrays | named
        del own[self.results[2]]
        memory = self.program.run(_ENERGY, table, sizes, onward=self._onward(own, members))
        numbers, hidden, repulsion, gradient, virial = results
        repeated = repulsion if members == 1 else repulsion.repeat(members)
        found = Results(numbers, hidden, repeated, gradient, virial)
        return found, _Run(table, sizes, (weights, graph, shared, memory))

    def _prepared(self, params: Params, members: int) -> Prepared:
        """Weights and transposed matrices; of weights that stay as they are, those of before."""
        given = tuple(params[name] for name in self.params)
        key = None if self.gradients else identity(given, members)  # those that learn do not stay
        for known in self.kept:
            if key is not None and known.key == key:
                return known
        arrays = {
            value: each.detach().contiguous()
            for value, each in zip(self.params.values(), given, strict=True)
        }
        arrays |= {
            value: torch.empty(members * value.numbers, dtype=self.program.dtype)
            for value in self.turned
        }
        table = self.program.table(arrays)
        if self.turned:
            onward = self._onward(arrays, members)
            self.program.run(_TURNED, table.copy(), Sizes(1, 0, 0, 0, 0), onward=onward)
        found = Prepared(key, given, arrays, table)
        if key is not None:
            self.kept[:] = [*self.kept, found][-_KEPT:]
        return found

    def _onward(self, own: Mapping[Value, Tensor], members: int) -> list[Integers]:
        """How far addresses move from each member to the next: those of arrays that it owns."""
        if members == 1:
            return []
        distances = np.zeros(self.program.places, dtype=np.int64)
        for value, tensor in own.items():
            distances[self.program.given[value]] = tensor.nbytes // members
        return [distances] * (members - 1)

    def reverse(self, run: _Run, cotangents: Iterable[Tensor]) -> dict[str, Tensor]:
        """Gradients of the parameters by name; run the last part."""
        sizes = [value.numbers for value in self.gradients.values()]
        flat = torch.empty(sum(sizes), dtype=self.program.dtype)
        parts = torch.split(flat, sizes)
        held = [each.contiguous() for each in cotangents]
        table = run.table.copy()
        for value, tensor in zip(self.cotangents, held, strict=True):
            table[self.program.given[value]] = tensor.data_ptr()
        for value, part in zip(self.gradients.values(), parts, strict=True):
            table[self.program.given[value]] = part.data_ptr()
        self.program.run(_GRADIENTS, table, run.sizes)
        return dict(zip(self.gradients, parts, strict=True))

    def _graph(self, batch: GraphBatch) -> dict[Value, Tensor]:
        graph, writer = self.writer.graph, self.writer
        edges = batch.edges.contiguous()
        offsets = [0]
        for count in batch.species_counts:
            offsets.append(offsets[-1] + count)
        return {
            graph.positions: batch.positions.detach().contiguous(),
            graph.cell: batch.cell.detach().contiguous(),
            graph.shifts: batch.shifts.contiguous(),
            graph.edges: edges,
            graph.senders: edges[1],
            graph.pair: batch.pair.contiguous(),
            graph.pair_edges: batch.pair_edges.contiguous(),
            graph.first_edge: batch.first_edge.contiguous(),
            graph.owner: batch.structure_index.contiguous(),
            graph.species: batch.species.contiguous(),
            # by numpy, ten times quicker than torch.tensor
            writer.whole: torch.from_numpy(np.array([0, batch.n_atoms], dtype=np.int64)),
            writer.by_element: torch.from_numpy(np.array(offsets, dtype=np.int64)),
        }


def _written(spec: RaceSpec, dtype: torch.dtype, folded: bool, learning: bool) -> _Written:
    """Write the network down and compile it.

    Raises:
        CompilerError: there is no compiler.
        UnsupportedError: its channels do not fill vectors.
    """
    writer = Writer(spec, folded)
    where, tape = writer.write(), writer.tape
    first = list(tape.steps)
    back = next(each for each in tape.operations if isinstance(each, GeometryBack))
    results = (writer.numbers, writer.hidden, where.repulsion, *back.outputs)
    differentiable = (writer.numbers, *back.outputs)
    cotangents = tuple(Value(value.rows, value.width) for value in differentiable)
    gradients: dict[str, Value] = {}
    if learning:
        wanted = tuple(writer.params.values())
        seeds = dict(zip(differentiable, cotangents, strict=True))
        found = tape.differentiate(seeds, wanted, learning=True)
        gradients = {name: found[value] for name, value in writer.params.items() if value in found}
    own = set() if learning else set(writer.params.values())
    turns = [step for step in first if step.name == "turn" and own.issuperset(step.inputs)]
    rest = [step for step in first[writer.shared :] if step not in turns]
    turned = tuple(value for step in turns for value in step.outputs if value is not None)
    parts = [first[: writer.shared], rest, tape.steps[len(first) :], turns]
    graph = [value for value in writer.graph if value is not None and value.constant is None]
    given = [*writer.params.values(), *graph, writer.whole, writer.by_element, *results]
    given += [*cotangents, *gradients.values(), *turned]
    program = Program(parts, given, dtype)
    return _Written(program, writer, writer.params, results, cotangents, gradients, turned)


class _Evaluate(torch.autograd.Function):
    """The operation that PyTorch sees."""

    @staticmethod
    def forward(ctx: Any, race: Any, written: Any, batch: Any, names: Any, *params: Tensor) -> Any:
        results, ctx.run = written.evaluate(dict(zip(names, params, strict=True)), batch)
        ctx.race, ctx.written, ctx.batch, ctx.names = race, written, batch, names
        ctx.save_for_backward(*params)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(results.repulsion)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        numbers, hidden, _, gradient, virial = cotangents
        params = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        several = any(_has_rows(value) for value in cotangents)  # is_grads_batched
        if torch.is_grad_enabled() or hidden is not None or several:
            return None, None, None, None, *_by_torch(ctx, params, cotangents)
        batch, width = ctx.batch, ctx.written.results[0].width
        shapes = ((batch.n_atoms, width), (batch.n_atoms, 3), (batch.n_structures, 3, 3))
        known = [
            batch.positions.new_zeros(shape) if value is None else value
            for value, shape in zip((numbers, gradient, virial), shapes, strict=True)
        ]
        found = ctx.written.reverse(ctx.run, known)
        return (
            *(None,) * 4,
            *(found[name].view(params[name].shape) if name in found else None for name in params),
        )


def _has_rows(value: Tensor | None) -> bool:
    functorch = torch._C._functorch
    if value is None:
        return False
    return functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value)


_evaluate: Any = _Evaluate.apply


def _by_torch(ctx: Any, params: Params, cotangents: tuple[Tensor | None, ...]) -> Any:
    """The same gradients by PyTorch, which can differentiate them again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = params if again else {k: v.detach().requires_grad_() for k, v in params.items()}
        results = ctx.race.by_torch(leaves, ctx.batch)
        pairs = [
            (value, cotangent)
            for value, cotangent in zip(results, cotangents, strict=True)
            if cotangent is not None
        ]
        wanted = {name: value for name, value in leaves.items() if value.requires_grad}
        found = torch.autograd.grad(
            [value for value, _ in pairs],
            list(wanted.values()),
            [cotangent for _, cotangent in pairs],
            create_graph=again,
            allow_unused=True,
        )
    named = dict(zip(wanted, found, strict=True))
    return [named.get(name) for name in leaves]
