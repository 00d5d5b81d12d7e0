"""Adopt a pretrained network of another package: its energies and forces, with σ for your data.

    import bayrace
    potential = bayrace.adopt("7net-0", "mine.xyz")
    potential.save("mine.bayrace")

Nothing is trained. The labelled structures are split in two. The first part gives the energy zero
of the elements, where that of the labels differs, and the posterior, which takes a quarter of it
for its own scales. The second part, which nothing has seen, calibrates σ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bayrace.calibrate.fit import GROWTH, Powers
from bayrace.config import Config, ConfigError, make_config, plain_values_of
from bayrace.config.build import likelihoods, train_settings
from bayrace.core.outputs import Params
from bayrace.core.protocols import ModelSpec
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.data.distances import Distances
from bayrace.data.frame import Frame, elements_of, symbols_of
from bayrace.data.split import fingerprint
from bayrace.models import model_names, spec_class
from bayrace.models.foreign import ForeignSpec
from bayrace.models.module import ModuleModel, check_linear
from bayrace.models.noise import Lambdas
from bayrace.posterior import POSTERIORS
from bayrace.posterior.method import FitTask
from bayrace.posterior.shifts import mean_shift
from bayrace.potential.opened import altered
from bayrace.potential.potential import Potential
from bayrace.train.callbacks import Callbacks
from bayrace.workflow.calibrate import calibrated
from bayrace.workflow.fit import Splits, posterior_method
from bayrace.workflow.growth import error_growth
from bayrace.workflow.prepare import drawn
from bayrace.workflow.train import read_splits, seen_frames

Shift = Literal["auto", "fit", "none"]
"""Energies of the elements between the network's zero and that of the labels."""

Growth = Literal["auto"] | float
"""Power of σ that errors far from the data follow."""

VALID = 0.3
"""Share of the structures that calibrate, where no others are given for it."""

_log = logging.getLogger(__name__)
_HELD_OUT = 0.25  # of the first part, for the scales of the posterior
_ADOPTED = {
    # errors of networks that were trained on everything grow slowly outside these data
    "distance": {"power": 1.0, "energy_power": 1.0, "regularisation": 0.01, "rigidity": 1e-10},
    # errors at home do not tell how far abroad is: the least ς above the rounding of features
    "llpr": {"regularisation": 1e-14},
}
_EDGES = 10_000  # of a batch
_LEAST = 8  # structures of the first part
_WORTH = 4.0  # a shift is fitted where it makes the mean square error so many times smaller


@dataclass(frozen=True)
class EnergyShift:
    """What lies between the energy zero of a network and that of the labels."""

    shift: dict[int, float]  # eV by atomic number, to be added
    before: float  # root mean square error of the energies, eV per atom
    after: float


def adopt(
    weights: str | ModelSpec,
    data: str | Path | Sequence[str | Path],
    *,
    valid: float | int | str | Path | Sequence[str | Path] = VALID,
    posterior: str = "distance",
    shift: Shift = "auto",
    growth: Growth = "auto",
    overrides: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Potential:
    """A potential from pretrained weights and the labelled structures in some files.

    `weights` is a name such as 7net-0 or chgnet, a file as in mace:medium.model, or the
    specification of a `ModuleModel` of your own. `valid` is a share, a number of structures, or
    other files, for the calibration. `growth` is the power of the posterior's σ with which errors
    grow away from the data; auto: as the farther half of them says. `overrides` change keys of the
    configuration, such as data.energy_key=dft_energy, calibrate=conformal, or seed=1 for others in
    the parts.
    """
    config = adoption_config(data, valid=valid, posterior=posterior, overrides=overrides)
    splits = read_splits(config)
    spec: ModelSpec
    if isinstance(weights, str):
        spec = foreign_spec(weights, elements=elements_of([*splits.train, *splits.valid]))
    else:
        spec = weights
    return adopt_splits(spec, splits, config, shift=shift, growth=growth, progress=progress)


def adoption_config(
    data: str | Path | Sequence[str | Path],
    *,
    valid: float | int | str | Path | Sequence[str | Path] = VALID,
    posterior: str = "distance",
    overrides: Sequence[str] = (),
) -> Config:
    """Where the data are and what is fitted to them, in the words of a training."""
    able = [name for name, method in POSTERIORS.all().items() if method.adopts]
    if posterior not in able:
        raise ConfigError(f"posterior={posterior!r}: without training there are {', '.join(able)}")
    raw: dict[str, Any] = {
        "data": {"train": _paths(data), "valid": valid if _counts(valid) else _paths(valid)},
        "posterior": {"kind": posterior, **_ADOPTED},
        "loss": {
            "kind": "mse",
            "forces": 0.0,
        },  # labels of forces are used where they are, and need not be
    }
    return make_config(raw, overrides, source="adopt")


def foreign_spec(weights: str, *, elements: Sequence[int]) -> ForeignSpec:
    """The specification of weights by their name, or by KIND:FILE, such as mace:medium.model."""
    kind, colon, path = weights.partition(":")
    kinds = _kinds()
    if colon and kind in kinds:
        return kinds[kind].adopt(path, elements=elements)
    for spec in kinds.values():
        if weights in spec.in_wheel:
            return spec.adopt(weights, elements=elements)
    names = ", ".join(name for spec in kinds.values() for name in spec.in_wheel)
    files = ", ".join(f"{kind}:FILE" for kind in kinds)
    raise ConfigError(f"{weights}: no such weights; give one of {names}, or {files}")


def adopt_splits(
    spec: ModelSpec,
    splits: Splits,
    config: Config,
    *,
    shift: Shift | Mapping[int, float] = "auto",
    growth: Growth = "auto",
    progress: Callable[[int], None] = lambda _: None,
) -> Potential:
    """The potential of a foreign network whose posterior and calibration fit these frames.

    A `shift` that is known is kept, eV by atomic number; it is 0 for elements that it lacks.
    `growth` is the power of the posterior's σ; auto: to which errors grow, see `error_growth`.
    """
    if len(splits.train) < _LEAST:
        raise ConfigError(
            f"{len(splits.train)} structures to fit σ to; give at least {_LEAST}, better 50, and "
            "others for its calibration"
        )
    model = spec.build()
    if not isinstance(model, ModuleModel):
        raise ConfigError(f"model {spec.name} is not a module of another package; train it instead")
    network = _Network(spec, model, model.init(0, dtype=model.dtype), config)
    whole = network.dataset(splits.train)
    first = next(edge_batches(whole, like=network.params, edges=_EDGES, chosen=range(1)))[0]
    deviation = check_linear(model, network.params, first)
    zero = energy_shift(model, network.params, whole, shift=shift)
    if isinstance(shift, str) and any(zero.shift.values()):
        _tell(zero)
    potential = network.fitted(whole, zero.shift, progress=progress)
    powers = Powers(growth, growth) if growth != "auto" else _grown(network, whole, zero, shift)
    potential = altered(
        potential,
        statistics=_statistics(whole, zero, deviation, valid=len(splits.valid))
        | {GROWTH: powers._asdict()},
        frames=seen_frames(splits),
        distances=Distances.of(whole),
    )
    return calibrated(potential, splits.valid, method=config.calibrate.method)


def _grown(
    network: _Network, whole: Dataset, zero: EnergyShift, shift: Shift | Mapping[int, float]
) -> Powers:
    """Powers of σ that errors of the farther structures follow; a fitted energy zero is theirs."""
    moves = isinstance(shift, str) and any(zero.shift.values())

    def nearer(frames: Sequence[Frame]) -> Potential:
        data = network.dataset(frames)
        own = energy_shift(network.model, network.params, data, shift="fit") if moves else zero
        return network.fitted(data, own.shift)

    seed = network.config.seed
    return error_growth(network.model, network.params, whole, nearer, seed=seed)


@dataclass(frozen=True, eq=False)
class _Network:
    """A foreign network, and how a posterior is fitted to it."""

    spec: ModelSpec
    model: ModuleModel
    params: Params
    config: Config

    def dataset(self, frames: Sequence[Frame], shift: dict[int, float] | None = None) -> Dataset:
        """Frames as its graphs; energies are relative to the network's zero, or a shifted one."""
        elements = self.spec.elements
        zero = dict.fromkeys(elements, 0.0) if shift is None else shift
        return Dataset(frames, elements=elements, cutoff=self.spec.cutoff, references=zero)

    def fitted(
        self,
        whole: Dataset,
        shift: dict[int, float],
        *,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Potential:
        """The potential whose posterior is fitted to these data, not calibrated."""
        config = self.config
        near, held = drawn(whole.frames, config, valid=_HELD_OUT)
        weights = Lambdas(1.0, 1.0, 1.0)  # there is no noise that they would correct
        task = FitTask(
            self.model,
            self.params,
            self.dataset(near, shift),
            self.dataset(held, shift),
            lambdas=weights,
            likelihood_at=likelihoods(config.loss, weights),
            settings=train_settings(config),
            refit_epochs=0,
            folder=Path(config.output),
            callbacks=Callbacks(progress=progress),
        )
        posterior = posterior_method(config).fit(task).posterior
        assert posterior is not None
        potential = Potential(
            spec=self.spec,
            posterior=posterior,
            references=shift,
            lambdas=weights,
            statistics={},
            config=plain_values_of(config),
            fingerprint=fingerprint(whole.frames),
        )
        vars(potential)["model"] = self.model  # loading it again would take seconds
        return potential


def _statistics(
    whole: Dataset, zero: EnergyShift, deviation: float, *, valid: int
) -> dict[str, Any]:
    """What the file tells of the data, and of how they fit the network."""
    distances = Distances.of(whole)
    return {
        "train_frames": len(whole),
        "valid_frames": valid,
        "train_atoms": sum(len(frame.numbers) for frame in whole.frames),
        "mean_neighbours": whole.mean_neighbours(),
        "force_rms": whole.force_rms(),
        "distance_gap": distances.usual(whole),
        "energy_shift": {symbols_of([z]): value for z, value in zero.shift.items()},
        "energy_rmse_per_atom_before_shift": zero.before,
        "energy_rmse_per_atom": zero.after,
        "last_layer_deviation": deviation,
    }


def energy_shift(
    model: ModuleModel,
    params: Params,
    data: Dataset,
    *,
    shift: Shift | Mapping[int, float] = "auto",
) -> EnergyShift:
    """Energies of the elements by least squares of the errors, where they explain most of them."""
    if not any(frame.energy is not None for frame in data.frames):
        raise ConfigError(
            "no structure has an energy; label them, or name its key: --set data.energy_key=..."
        )
    before = _energy_error(model, params, data)
    if not isinstance(shift, str):
        known = {z: shift.get(z, 0.0) for z in data.elements}
        return EnergyShift(known, before, _energy_error(model, params, data.with_references(known)))
    fitted = dict(zip(data.elements, mean_shift(model, params, data).tolist(), strict=True))
    after = _energy_error(model, params, data.with_references(fitted))
    if shift == "fit" or (shift == "auto" and before > _WORTH**0.5 * after):
        return EnergyShift(fitted, before, after)
    return EnergyShift(dict.fromkeys(data.elements, 0.0), before, before)


def _tell(zero: EnergyShift) -> None:
    _log.warning(
        "energies of the labels have another zero: added to the network's %s; the error falls from "
        "%.3g to %.3g eV per atom. Give shift=none to keep its own.",
        ", ".join(f"{symbols_of([z])} {value:+.4f} eV" for z, value in zero.shift.items()),
        zero.before,
        zero.after,
    )


@torch.no_grad()
def _energy_error(model: ModuleModel, params: Params, data: Dataset) -> float:
    """Root mean square error, eV per atom."""
    errors = []
    for batch, labels in edge_batches(data, like=params, edges=_EDGES):
        error = model.energy(params, batch).energy.double() - labels.energy.double()
        errors.append(error / batch.atom_counts())
    found = torch.cat(errors)
    return float(np.sqrt(np.nanmean(found.square().numpy(force=True))))


def _kinds() -> dict[str, type[ForeignSpec]]:
    """Networks of other packages that we know, by the name of their specification."""
    found = {name: spec_class(name) for name in model_names()}
    return {name: spec for name, spec in found.items() if issubclass(spec, ForeignSpec)}


def _counts(valid: object) -> bool:
    return isinstance(valid, int | float)


def _paths(data: Any) -> list[str]:
    return [str(data)] if isinstance(data, str | Path) else [str(path) for path in data]
