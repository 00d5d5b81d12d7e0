"""Which irreps live where in a RACE network, and the shapes of its parameters.

Pruning: an irrep is kept after layer t only if it can be reached from the scalars of the embedding
and if a readout or a later layer uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from bayrace.models.noise import NoiseSpec
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.contraction import SelfProduct
from bayrace.nn.convolution import Plan
from bayrace.nn.covariance import FORCES_NUMBERS, STRESS_NUMBERS
from bayrace.nn.irreps import QUADRUPOLE, SCALAR, VECTOR, Channels, Irrep, parse_irreps

QUADRUPOLE_CHANNELS = 16  # gated channels that one 2e number of a noise head is summed from
VECTOR_CHANNELS = 16  # and those of an atom's vector, where the target is the norm of their sum


@dataclass(frozen=True)
class Group:
    """Input irreps with the same number of channels are convolved together."""

    plan: Plan
    channels: int


@dataclass(frozen=True)
class LayerLayout:
    """Irreps and channel counts of one layer."""

    name: str
    first: bool
    last: bool
    inputs: Channels
    convolved: Channels  # after convolution and update; more than outputs where A ⊗ A follows
    outputs: Channels
    groups: tuple[Group, ...]
    product: SelfProduct | None  # A ⊗ A, where the option is on

    def message_channels(self, irrep: Irrep) -> int:
        """Channels of all paths that end in an irrep."""
        return sum(group.plan.path_count(irrep) * group.channels for group in self.groups)


@dataclass(frozen=True)
class HeadColumns:
    """Where the readout's numbers stand: energy, energy noise, forces noise, stress noise."""

    scalars: int  # columns of invariants; column 0 is the energy, 1 its log-variance
    # (shallow: the others are members' deviations from the energy)
    quadrupoles: int  # 2e irreps, five columns each, behind the invariants
    forces: tuple[int, ...]
    stress: tuple[int, ...]


def head_columns(noise: NoiseSpec) -> HeadColumns:
    """Columns of the readout for a kind of noise."""
    if noise.kind != "joint":
        scalars = {"none": 1, "energy": 2, "shallow": 1 + noise.members}[noise.kind]
        return HeadColumns(scalars, 0, (), ())
    if noise.covariance == "cholesky":
        forces = tuple(range(2, 2 + FORCES_NUMBERS))
        stress = tuple(range(8, 8 + STRESS_NUMBERS["cholesky"])) if noise.stress else ()
        return HeadColumns(2 + len(forces) + len(stress), 0, forces, stress)
    scalars = 5 if noise.stress else 3
    forces = (2, *range(scalars, scalars + 5))
    stress = (3, 4, *range(scalars + 5, scalars + 15)) if noise.stress else ()
    return HeadColumns(scalars, 3 if noise.stress else 1, forces, stress)


def race_layout(spec: RaceSpec) -> tuple[LayerLayout, ...]:
    """The layers of a network, pruned."""
    hidden = parse_irreps(spec.hidden)
    reached = [{SCALAR: spec.features}]
    for _ in range(spec.layers):
        plan = Plan(tuple(reached[-1]), spec.l_max, tuple(hidden))
        reached.append({i: count for i, count in hidden.items() if plan.path_count(i)})
    read = {SCALAR, QUADRUPOLE} if head_columns(spec.noise).quadrupoles else {SCALAR}
    read |= {VECTOR} if spec.target.pooling == "norm" else set()
    layers: list[LayerLayout] = []
    needed = set(read)
    for index in reversed(range(spec.layers)):
        outputs = _only(reached[index + 1], needed)
        convolved = reached[index + 1] if spec.self_contraction else outputs
        used = {
            source
            for source in reached[index]
            if Plan((source,), spec.l_max, tuple(convolved)).paths
        }
        inputs = _only(reached[index], used | (read if index else set()))
        layers.insert(0, _layer(spec, index, inputs, convolved, outputs))
        needed = set(inputs)
    return tuple(layers)


def parameter_shapes(spec: RaceSpec, layout: tuple[LayerLayout, ...]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the order in which they are drawn."""
    features, species = spec.features, len(spec.elements)
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (species, features),
        "one_body": (features, features),
    }
    for layer in layout:
        own = _layer_shapes(spec, layer, species)
        shapes |= {f"{layer.name}.{name}": shape for name, shape in own.items()}
    return shapes


def _layer_shapes(spec: RaceSpec, layer: LayerLayout, species: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"up.{irrep}": (count, count) for irrep, count in layer.inputs.items()
    }
    width = sum(len(group.plan.paths) * group.channels for group in layer.groups)
    sizes = (spec.radial_basis, *spec.radial_hidden, width)
    for k, shape in enumerate(pairwise(sizes)):
        shapes[f"radial.{k}"] = shape
    if spec.pair_radial:
        shapes["pair_gain"] = (species * species, sizes[1])
    for irrep, count in layer.convolved.items():
        shapes[f"down.{irrep}"] = (layer.message_channels(irrep), count)
        shapes[f"product.{irrep}"] = (spec.features, count, count)
        if irrep in layer.inputs:
            shapes[f"skip.{irrep}"] = (species, layer.inputs[irrep], count)
    if layer.product:
        for irrep in layer.product.outputs:
            if couplings := len(layer.product.couplings(irrep)):
                count = layer.outputs[irrep]
                shapes[f"contract.{irrep}"] = (couplings * count, count)
    if spec.gate and not layer.last:
        for irrep, count in layer.outputs.items():
            if irrep != SCALAR:
                shapes[f"gate.{irrep}"] = (layer.outputs[SCALAR], count)
    columns = head_columns(spec.noise)
    shapes["readout.hidden"] = (layer.outputs[SCALAR], spec.readout_hidden)
    shapes["readout.scalars"] = (spec.readout_hidden, columns.scalars)
    if columns.quadrupoles and QUADRUPOLE in layer.outputs:
        gated = columns.quadrupoles * QUADRUPOLE_CHANNELS
        shapes["readout.quadrupole"] = (layer.outputs[QUADRUPOLE], gated)
        shapes["readout.gates"] = (spec.readout_hidden, gated)
    if spec.target.pooling == "norm" and VECTOR in layer.outputs:
        shapes["readout.vector"] = (layer.outputs[VECTOR], VECTOR_CHANNELS)
        shapes["readout.vector_gates"] = (spec.readout_hidden, VECTOR_CHANNELS)
    return shapes


def _layer(
    spec: RaceSpec, index: int, inputs: Channels, convolved: Channels, outputs: Channels
) -> LayerLayout:
    groups = []
    for channels in sorted(set(inputs.values()), reverse=True):
        members = tuple(irrep for irrep, count in inputs.items() if count == channels)
        plan = Plan(members, spec.l_max, tuple(convolved))
        if plan.paths:
            groups.append(Group(plan, channels))
    product = None
    if spec.self_contraction:
        alike = tuple(i for i in convolved if convolved[i] == convolved[SCALAR])
        product = SelfProduct(alike, tuple(i for i in alike if i in outputs))
    return LayerLayout(
        name=f"layer{index + 1}",
        first=index == 0,
        last=index == spec.layers - 1,
        inputs=inputs,
        convolved=convolved,
        outputs=outputs,
        groups=tuple(groups),
        product=product,
    )


def _only(channels: Channels, irreps: set[Irrep]) -> Channels:
    return {irrep: count for irrep, count in channels.items() if irrep in irreps}
