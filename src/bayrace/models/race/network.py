"""RACE: many-body message passing by restratified products (docs/theory.md).

A^(t) = Linear(Conv(A^(t-1)) ⊗ a¹) + SelfInteraction(A^(t-1)), with a readout after every layer.
Because a¹ depends on the element only, Linear(· ⊗ a¹) is one matrix per element: exactly
M_vw(Z) = Σ_u W_uvw a¹_u(Z) / √(U V), built once per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Derivatives, Heads, Params
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.compiled import CompiledRace
from bayrace.models.race.geometry import Geometry, geometry_of
from bayrace.models.race.layout import LayerLayout, parameter_shapes, race_layout
from bayrace.models.race.maps import flat, join, layer_maps, scoped, select, split
from bayrace.models.race.pretrained import overlaid
from bayrace.models.race.radial import TABLE, Radial
from bayrace.models.race.readout import Readout, heads_from, heads_of, readout
from bayrace.models.race.short_range import short_range
from bayrace.models.race.spec import RaceSpec
from bayrace.models.race.start import GATES, QUADRUPOLES, SCALARS, drawn, rescaled
from bayrace.nn import convolution, mixing, products, splines
from bayrace.nn.convolution import convolve
from bayrace.nn.irreps import SCALAR, Irrep
from bayrace.nn.kernels import Kernel
from bayrace.nn.linear import atomwise, linear
from bayrace.nn.mixing import Mixing, mix
from bayrace.nn.products import square
from bayrace.nn.radial import silu


class Known(NamedTuple):
    """What a layer reads besides the features of the one before."""

    embedding: Tensor  # A⁰ of each element, (Z, F)
    one_body: Tensor  # a¹ of each element, (Z, F)
    geometry: Geometry
    batch: GraphBatch


class Race:
    """The RACE network as a pure function of its parameters."""

    def __init__(self, spec: RaceSpec, *, kernel: Kernel = "auto") -> None:
        self.spec = spec
        self.kernel: Kernel = kernel
        self.layout = race_layout(spec)
        self.maps = {layer.name: layer_maps(spec, layer) for layer in self.layout}
        self.radial = Radial(spec, kernel)
        self.shapes = parameter_shapes(spec, self.layout)
        self.compiled = CompiledRace(spec, kernel, self._readouts)

    @property
    def cutoff(self) -> float:
        """Å."""
        return self.spec.cutoff

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers, ascending."""
        return self.spec.elements

    @property
    def hops(self) -> int:
        """One for each layer."""
        return len(self.layout)

    @property
    def noise_spec(self) -> NoiseSpec:
        """Which noise heads the network has."""
        return self.spec.noise

    def prepare(self, dtype: torch.dtype) -> None:
        """Build all kernels of the network at once, so that no step waits for a compiler."""
        if self.compiled.program(dtype, folded=False, learning=True) is not None:
            return  # the operators are built when somebody wants them
        kernel = self.kernel
        jobs: list[Callable[[], Kernel]] = []
        for layer in self.layout:
            for group in layer.groups:
                sizes = (group.plan, group.channels)
                jobs.append(partial(convolution.prepare, *sizes, dtype, kernel=kernel))
            if layer.product:
                channels = layer.convolved[SCALAR]
                product = layer.product
                jobs.append(partial(products.prepare, product, channels, dtype, kernel=kernel))
            maps = [one for one in self.maps[layer.name] if one is not None]
            jobs += [partial(mixing.prepare, one, dtype, kernel=kernel) for one in maps]
        if self.spec.radial_knots:
            jobs.append(partial(splines.prepare, dtype, kernel=kernel))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda job: job(), jobs))

    def init(
        self, seed: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Params:
        """Weights to start from, the same for every dtype and device."""
        params = overlaid(self.spec, drawn(self.shapes, seed))
        return {name: value.to(dtype=dtype, device=device) for name, value in params.items()}

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energy of each structure and the raw noise heads; `params` may be folded.

        Folded weights of M members, (M, ...) each, go with a batch that is `repeated` M times; see
        `side_by_side`.
        """
        readouts, repulsion = self._readouts(params, batch)
        return heads_of(self.spec, readouts, batch, known=repulsion)

    def _readouts(self, params: Params, batch: GraphBatch) -> tuple[list[Readout], Tensor | None]:
        """What every layer says, and the repulsion of pairs that are too close, eV, (N,)."""
        known, repulsion = self._known(params, batch)
        features: Tensor | None = None
        readouts: list[Readout] = []
        for layer in self.layout:
            own = scoped(params, layer.name)
            features = self._layer(layer, own, features, known)
            readouts.append(readout(self.spec.noise, layer, own, features))
        return readouts, repulsion

    def derivatives(self, params: Params, batch: GraphBatch) -> Derivatives | None:
        """Energies, heads and first derivatives in one go; None where they must be taken."""
        results = self.compiled(params, batch)
        if results is None:
            return None
        known = results.repulsion if self.spec.shortest else None
        heads = heads_from(self.spec, results.numbers, results.hidden, batch, known=known)
        return Derivatives(heads, results.gradient, results.virial)

    def quick(self, dtype: torch.dtype) -> bool:
        """Whether folded weights have a compiled program on the CPU."""
        return self.compiled.program(dtype, folded=True, learning=False) is not None

    def _known(self, params: Params, batch: GraphBatch) -> tuple[Known, Tensor | None]:
        """What all layers read, and the repulsion of pairs that are too close, eV, (N,)."""
        geometry = geometry_of(batch, self.spec.l_max)
        one_body = linear(params["embedding"], params["one_body"])  # a¹ of each element, (Z, F)
        close = short_range(self.spec, geometry.distance, batch)
        geometry = geometry._replace(distance=close.distance)
        return Known(params["embedding"], one_body, geometry, batch), close.energy

    def rescaled(self, params: Params, batch: GraphBatch) -> Params:
        """Initial weights without large features; as they are where nothing is squared."""
        if self.spec.pretrained or not self.spec.self_contraction:
            return params
        known, _ = self._known(params, batch)
        return rescaled(self.layout, params, partial(self._layer, known=known))

    def last_layer(self, params: Params) -> Tensor:
        """Weights that energies are linear in, (D,): Heads.last_features @ these + constants."""
        self._refuse_activation()
        return torch.cat([params[f"{layer.name}.{SCALARS}"][:, 0] for layer in self.layout])

    def with_last_layer(self, params: Params, weights: Tensor) -> Params:
        """The same parameters with other weights (D,) there."""
        self._refuse_activation()
        changed = dict(params)
        for layer, own in zip(self.layout, weights.chunk(len(self.layout)), strict=True):
            name = f"{layer.name}.{SCALARS}"
            changed[name] = torch.cat([own.unsqueeze(-1), params[name][:, 1:]], dim=-1)
        return changed

    def deviations(self, params: Params) -> Tensor:
        """What the members of a shallow ensemble add to the last layer, (D, M)."""
        if self.spec.noise.kind != "shallow":
            raise ValueError(
                "this network has no members in its last layer; train one with loss.kind: shallow"
            )
        return torch.cat([params[f"{layer.name}.{SCALARS}"][:, 1:] for layer in self.layout])

    def noise_weights(self, params: Params) -> Params:
        """Masks of the parameters with noise heads: 1 where only noise moves with the weight."""
        masks: Params = {}
        for name, value in params.items():
            if name.endswith(SCALARS) and value.shape[-1] > 1:
                masks[name] = torch.ones_like(value)
                masks[name][..., 0] = 0  # the energy
            elif name.endswith((QUADRUPOLES, GATES)):
                masks[name] = torch.ones_like(value)
        return masks

    def _refuse_activation(self) -> None:
        if self.spec.activation != "identity":
            raise ValueError(
                f"activation={self.spec.activation!r}: energies are not linear in a last layer; "
                "use an ensemble or SWAG for its uncertainty, or activation: identity"
            )

    def side_by_side(self, members: Params) -> bool:
        """Whether `energy` takes these stacked weights, on a batch repeated for each member."""
        return all(f"{layer.name}.{TABLE}" in members for layer in self.layout)

    def fold(self, params: Params) -> Params:
        """The same network with everything multiplied out that does not depend on positions.

        `energy` takes the result as it takes `params`, and is faster with it; training needs the
        originals. Works on one set of weights; use vmap for stacked ones.
        """
        one_body = linear(params["embedding"], params["one_body"])
        folded = {name: value for name, value in params.items() if not _is_folded(name)}
        for layer in self.layout:
            own = scoped(params, layer.name)
            folded[f"{layer.name}.update"] = self._folded_update(layer, own, one_body)
            if self.spec.radial_knots:
                folded[f"{layer.name}.{TABLE}"] = self.radial.table(own)
        return folded

    def _folded_update(
        self, layer: LayerLayout, own: Mapping[str, Tensor], one_body: Tensor
    ) -> Tensor:
        """`down` and the product with a¹ as one matrix per irrep and element, (Z, Σ K · C)."""
        maps = self.maps[layer.name]
        matrices = []
        for irrep, down, species in zip(
            layer.convolved, maps.down.blocks, maps.species.blocks, strict=True
        ):
            product = own[f"product.{irrep}"]
            mixed = (one_body @ product.flatten(1)).reshape(-1, *product.shape[1:])
            matrix = own[f"down.{irrep}"] @ mixed * (down.scale * species.scale)
            matrices.append(matrix.flatten(1))
        return torch.cat(matrices, dim=-1)

    def _layer(
        self,
        layer: LayerLayout,
        own: Mapping[str, Tensor],
        features: Tensor | None,
        known: Known,
    ) -> Tensor:
        """One message-passing step, A^(t-1) to A^(t); there is no A^(0) but the embedding."""
        embedding, one_body, geometry, batch = known
        maps = self.maps[layer.name]
        if features is None:
            lifted = linear(embedding, own["up.0e"]).flatten(0, -2)[batch.species]
        else:
            lifted = self._mix_alike(maps.up, features, flat(own, "up", layer.inputs))
        messages = self._messages(layer, own, lifted, geometry, batch)
        updated = self._update(layer, own, messages, one_body, batch)
        if features is None:
            updated = updated + self._first_skip(layer, own, embedding)[batch.species]
        else:
            shared = [irrep for irrep in layer.inputs if irrep in layer.convolved]
            skip = torch.cat([own[f"skip.{irrep}"].flatten(-2) for irrep in shared], dim=-1)
            updated = updated + mix(
                maps.skip, features, skip.flatten(0, -2), batch.species_counts, kernel=self.kernel
            )
        return self._beyond_the_paper(layer, own, updated)

    def _mix_alike(self, mixing: Mixing, x: Tensor, w: Tensor) -> Tensor:
        """A map that is the same for all atoms, or for all of a member; (1 or M, weights)."""
        counts = (x.shape[0] // w.shape[0],) * w.shape[0]
        return mix(mixing, x, w, counts, kernel=self.kernel)

    def _update(
        self,
        layer: LayerLayout,
        own: Mapping[str, Tensor],
        messages: Tensor,
        one_body: Tensor,
        batch: GraphBatch,
    ) -> Tensor:
        """Linear(messages ⊗ a¹), which is one matrix per element."""
        maps, counts = self.maps[layer.name], batch.species_counts
        if "update" in own:
            update = own["update"].flatten(0, -2)
            return mix(maps.folded, messages, update, counts, kernel=self.kernel)
        down = self._mix_alike(maps.down, messages, flat(own, "down", layer.convolved))
        products = [one_body @ own[f"product.{irrep}"].flatten(1) for irrep in layer.convolved]
        return mix(maps.species, down, torch.cat(products, dim=-1), counts, kernel=self.kernel)

    def _first_skip(
        self, layer: LayerLayout, own: Mapping[str, Tensor], embedding: Tensor
    ) -> Tensor:
        """The self-interaction of the first layer, which has scalars only, (Z, width)."""
        skip = own[f"skip.{SCALAR}"]
        scalars = torch.einsum("...zf,...zfc->...zc", embedding, skip).flatten(0, -2)
        scalars = scalars * (1 / math.sqrt(skip.shape[-2]))
        rest = self.maps[layer.name].species.after - scalars.shape[-1]
        return torch.nn.functional.pad(scalars, (0, rest))

    def _messages(
        self,
        layer: LayerLayout,
        own: Mapping[str, Tensor],
        lifted: Tensor,
        geometry: Geometry,
        batch: GraphBatch,
    ) -> Tensor:
        """Convolution, flat; channels of all paths side by side."""
        radial = self.radial(own, geometry.distance, batch)
        collected: dict[Irrep, list[Tensor]] = {irrep: [] for irrep in layer.convolved}
        start = 0
        for group in layer.groups:
            paths = len(group.plan.paths)
            width = paths * group.channels
            weights = radial[:, start : start + width].reshape(-1, paths, group.channels)
            start += width
            wanted = dict.fromkeys(group.plan.inputs, group.channels)
            chosen = select(lifted, layer.inputs, wanted)
            stacked = chosen.reshape(batch.n_atoms, -1, group.channels)
            summed = convolve(
                group.plan, stacked, geometry.harmonics, weights, batch, kernel=self.kernel
            )
            if len(layer.groups) == 1:
                return summed.flatten(1)
            for irrep, view in group.plan.split(summed).items():
                collected[irrep].append(view)
        return join({irrep: torch.cat(views, dim=-1) for irrep, views in collected.items()})

    def _beyond_the_paper(
        self, layer: LayerLayout, own: Mapping[str, Tensor], features: Tensor
    ) -> Tensor:
        """Optional self-contraction A + Linear(A ⊗ A), then the optional gate."""
        kept = select(features, layer.convolved, layer.outputs)
        if layer.product:
            product, channels = layer.product, layer.convolved[SCALAR]
            alike = dict.fromkeys(product.inputs, channels)
            stacked = select(features, layer.convolved, alike)
            stacked = stacked.reshape(features.shape[0], -1, channels)
            coupled = square(product, stacked, kernel=self.kernel).flatten(1)
            present = [irrep for irrep in product.outputs if product.couplings(irrep)]
            contract = self.maps[layer.name].contract
            assert contract is not None
            kept = kept + self._mix_alike(contract, coupled, flat(own, "contract", present))
        if not self.spec.gate or layer.last:
            return kept
        views = split(kept, layer.outputs)
        scalars = views[SCALAR]
        gated = {SCALAR: silu(scalars)}
        for irrep, value in views.items():
            if irrep != SCALAR:
                gate = torch.sigmoid(atomwise(scalars, own[f"gate.{irrep}"]))
                gated[irrep] = value * (gate * 2)
        return join(gated)


def _is_folded(name: str) -> bool:
    """Whether `Race.fold` replaces this parameter."""
    return any(part in name for part in (".down.", ".product."))
