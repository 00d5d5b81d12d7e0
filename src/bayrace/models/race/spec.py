"""Everything that defines a RACE network except its weights, as plain JSON-able values."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from bayrace.core.protocols import Model
from bayrace.core.target import ENERGY, Target
from bayrace.data.dataset import Dataset
from bayrace.data.frame import DataError
from bayrace.data.statistics import Statistics, target_statistics
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.options import Architecture, RaceOptions
from bayrace.models.race.stored_spec import MOST_SCALE, check_types
from bayrace.nn.harmonics import MAX_DEGREE
from bayrace.nn.irreps import QUADRUPOLE, SCALAR, VECTOR, parse_irreps

MIN_KNOTS = 16


@dataclass(frozen=True)
class RaceSpec(Architecture):
    """Architecture (docs/theory.md), the elements, and the statistics of the training set."""

    name: ClassVar[str] = "race"
    options: ClassVar[type[RaceOptions]] = RaceOptions
    elements: tuple[int, ...]  # atomic numbers, ascending
    mean_neighbours: float  # measured on the training set
    noise: NoiseSpec
    scale: float  # eV; the network works in units of it
    shift: tuple[float, ...]  # eV, added to the energy of each atom by element
    # Å, (Z, Z): of every two elements in the training set, 0 where unknown; empty: all unknown.
    shortest: tuple[tuple[float, ...], ...] = ()
    target: Target = ENERGY  # scale and shift are in its unit
    pretrained: str = ""  # name of the weights that training starts from; empty: drawn ones

    def __post_init__(self) -> None:
        check_types(self.to_json())  # what could not be read again must not be trained
        _check(self)

    @classmethod
    def of(
        cls, options: RaceOptions, train: Dataset, *, noise: NoiseSpec, target: Target
    ) -> RaceSpec:
        """The network that options ask for, with the statistics of a training set."""
        auto = options.mean_neighbours == "auto"
        statistics = Statistics(1.0, (0.0,) * len(train.elements))
        if options.normalise:
            statistics = _statistics(train, target)
        spec = cls(
            **{field.name: getattr(options, field.name) for field in fields(Architecture)},
            elements=train.elements,
            mean_neighbours=train.mean_neighbours() if auto else float(options.mean_neighbours),
            noise=noise,
            scale=statistics.scale,
            shift=statistics.shift,
            shortest=train.shortest_distances() if options.short_range and target.is_energy else (),
            target=target,
        )
        if options.start == "random":
            return spec
        weights = importlib.import_module("bayrace.models.race.pretrained")  # it imports this file
        required = options.start == "pretrained"
        started: RaceSpec = weights.started(spec, train, required=required, measured=auto)
        return started

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RaceSpec:
        """Rebuild from `to_json`, refusing missing and unknown names."""
        names = {field.name for field in fields(cls)}
        # what came after the first potentials
        plain = {
            "radial_knots": 0,
            "shortest": (),
            "target": asdict(ENERGY),
            "pretrained": "",
            **values,
        }
        if wrong := names ^ set(plain):
            raise ValueError(f"model specification: unexpected or missing keys {sorted(wrong)}")
        for name in ("elements", "radial_hidden", "shift"):
            plain[name] = tuple(plain[name])
        plain["shortest"] = tuple(tuple(row) for row in plain["shortest"])
        check_types(plain)  # before anything is made of them
        plain["noise"] = NoiseSpec(**plain["noise"])
        plain["target"] = Target(**plain["target"])
        return cls(**plain)

    def build(self) -> Model:
        """The network."""
        # by its name: it imports this file
        network = importlib.import_module("bayrace.models.race.network")
        model: Model = network.Race(self)
        return model


def _statistics(train: Dataset, target: Target) -> Statistics:
    """Scale and shift of the network's numbers: of forces where there are some."""
    forces = target.is_energy and any(frame.forces is not None for frame in train.frames)
    if forces:
        found = Statistics(train.force_rms(), train.atomic_shift())
    else:
        found = target_statistics(train, target)
        found = found._replace(shift=train.atomic_shift()) if target.is_energy else found
    if not found.scale <= MOST_SCALE:
        what = "forces" if forces else target.name
        raise DataError(
            f"{train.frames[0].source}: labels of {what} with a root mean square of "
            f"{found.scale:.3g} {'eV/Å' if forces else target.unit} are not of this world; convert "
            "their unit, or remove the frames that have them (bayrace validate shows which)"
        )
    return found


def _check(spec: RaceSpec) -> None:
    if not spec.elements or list(spec.elements) != sorted(set(spec.elements)):
        raise ValueError(f"elements={spec.elements}: give ascending atomic numbers, at least one")
    if len(spec.shift) != len(spec.elements):
        raise ValueError(f"shift={spec.shift}: give one value for each of {spec.elements}")
    sizes = {len(spec.shortest), *(len(row) for row in spec.shortest)}
    if spec.shortest and sizes != {len(spec.elements)}:
        raise ValueError(
            f"shortest={spec.shortest}: give one distance for every two of {spec.elements}, or none"
        )
    if not spec.cutoff > 0:
        raise ValueError(f"cutoff={spec.cutoff}: give a positive distance in Å, e.g. 5.0")
    if not (spec.mean_neighbours > 0 and spec.scale > 0):
        raise ValueError(
            f"mean_neighbours={spec.mean_neighbours}, scale={spec.scale}: both must be positive"
        )
    if spec.layers < 1:
        raise ValueError(f"layers={spec.layers}: give at least 1")
    if spec.radial_knots and spec.radial_knots < MIN_KNOTS:
        raise ValueError(
            f"radial_knots={spec.radial_knots}: give {MIN_KNOTS} or more, e.g. 128, or 0 for"
            " the network itself at every pair"
        )
    if not 0 <= spec.l_max <= MAX_DEGREE:
        raise ValueError(f"l_max={spec.l_max}: give 0 to {MAX_DEGREE}")
    hidden = parse_irreps(spec.hidden)
    if SCALAR not in hidden:
        raise ValueError(f"hidden={spec.hidden!r}: energies are read from 0e; add e.g. '32x0e'")
    noise = spec.noise
    if noise.kind == "joint" and noise.covariance == "equivariant" and QUADRUPOLE not in hidden:
        raise ValueError(
            f"hidden={spec.hidden!r}: an equivariant force covariance is read from 2e; "
            "add e.g. '32x2e' or set covariance to 'cholesky'"
        )
    if spec.target.pooling == "norm" and VECTOR not in hidden:
        raise ValueError(
            f"hidden={spec.hidden!r}: a vector such as the dipole is read from 1o; add e.g. '32x1o'"
        )
    if not spec.target.extensive and noise.kind != "none" and noise.energy == "extensive":
        raise ValueError(
            f"{spec.target.name} is not extensive, its noise cannot be; set energy_noise: mean_log"
        )
    if not spec.target.is_energy and noise.kind == "joint":
        raise ValueError(f"{spec.target.name} has no forces; train with loss.kind: nll_e or mse")
