"""What one may choose of a RACE network: the architecture, and what is measured on the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Predicate

from bayrace.nn.irreps import parse_irreps

Preset = Literal["tiny", "small", "medium", "qm9", "psb3", "rmd17", "3bpa", "obn25"]


def _are_irreps(text: str) -> bool:
    try:
        return bool(parse_irreps(text))
    except ValueError:
        return False


@dataclass(frozen=True)
class Architecture:
    """What the network is, whatever it is trained on; docs/model.md has the formulas."""

    cutoff: Annotated[float, Gt(0)]
    """Neighbours closer than this interact, Å."""
    layers: Annotated[int, Ge(1), Le(12)]
    """Message-passing layers."""
    hidden: Annotated[str, Predicate(_are_irreps)]
    """Irreps between layers, channels x degree and parity, such as 32x0e+32x1o+16x2e."""
    features: Annotated[int, Ge(1)]
    """Length of the embedding of an element."""
    l_max: Annotated[int, Ge(0), Le(3)]
    """Highest degree of the spherical harmonics."""
    radial_basis: Annotated[int, Ge(1)]
    """Bessel functions that describe a distance to the radial network."""
    envelope_power: Annotated[int, Ge(2)]
    """Order p of the polynomial that takes messages smoothly to 0 at the cutoff."""
    radial_hidden: tuple[int, ...]
    """Widths of the hidden layers of the radial network, which weighs messages by distance."""
    radial_knots: int
    """Intervals of the cubic splines through the radial network; 0 evaluates it at every pair."""
    readout_hidden: Annotated[int, Ge(1)]
    """Width of the hidden layer that the energies of atoms are read from."""
    neighbour_norm: Literal["sqrt", "mean"]
    """Divide sums over neighbours by the square root of their mean number, or by it."""
    activation: Literal["identity", "relu"]
    """Activation of the energy of an atom; relu for targets that cannot be negative."""
    gate: bool
    """Gated nonlinearity between layers (beyond the paper)."""
    self_contraction: bool
    """True product A ⊗ A in each layer (beyond the paper)."""
    pair_radial: bool
    """Radial functions by species pair (beyond the paper)."""


@dataclass(frozen=True, kw_only=True)
class RaceOptions(Architecture):
    """The network. Anything left out comes from the preset."""

    kind: Literal["race"] = "race"
    """Kind of network."""
    preset: Preset = "small"
    """Starting point of all values below."""
    mean_neighbours: Literal["auto"] | Annotated[float, Gt(0)]
    """Mean number of neighbours of an atom, which scales what they add up to; auto measures
    it on the training data. Pretrained weights keep their own, and do not suit another number."""
    short_range: bool
    """Below the shortest distances of the training data: splines that go on and saturate, and the
    known repulsion of nuclei (ZBL)."""
    start: Literal["auto", "random", "pretrained"]
    """Weights before the first step: pretrained on small molecules (H, C, N, O, F, P, S, Cl) or
    random; auto takes the former where they suit network and data."""
    normalise: bool
    """Scale outputs by the forces' spread in the training data."""
    dtype: Literal["float32", "float64"]
    """Precision of the network."""
