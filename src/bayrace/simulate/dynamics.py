"""Molecular dynamics with a potential that watches its own uncertainty.

`simulate` yields what there is to know at every look: energies, temperature, σ, and the risk of a
stop rule, after which it ends where the rule says so. What is done with it (files, progress bars,
frames to label) is up to whoever iterates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.bussi import Bussi
from ase.md.langevin import Langevin
from ase.md.nose_hoover_chain import MTKNPT
from ase.md.nptberendsen import NPTBerendsen
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet

from bayrace.core.protocols import ClosedForm
from bayrace.data.distances import Gap
from bayrace.data.frame import Frame, frame_to_atoms
from bayrace.deploy.ase import Calculator
from bayrace.potential.potential import Potential
from bayrace.simulate.bias import BiasedCalculator
from bayrace.simulate.explosion import HOTTEST, has_company, in_pieces, remedy, too_hot
from bayrace.simulate.stop import Risk, StopRule


class ExplodedError(ValueError):
    """Dynamics that cannot go on: atoms flew apart or fell onto each other."""


@dataclass(frozen=True)
class DynamicsSettings:
    """What is simulated, and how."""

    ensemble: Literal["nve", "nvt", "npt"]
    """Thermodynamic ensemble of the dynamics."""
    temperature: Annotated[float, Gt(0)]
    """Of the first velocities, and of the thermostat, K."""
    steps: Annotated[int, Ge(0)]
    """How many steps are simulated."""
    timestep: Annotated[float, Gt(0)] = 0.5
    """Time step of the dynamics, fs."""
    thermostat: Literal["langevin", "bussi"] = "langevin"
    """nvt: thermostat."""
    friction: Annotated[float, Gt(0)] = 0.01
    """langevin: friction, 1/fs."""
    relaxation: Annotated[float, Gt(0)] = 100.0
    """bussi, npt: relaxation time of the temperature, fs."""
    barostat: Literal["mtk", "berendsen"] = "mtk"
    """npt: barostat; mtk lets the cell change its shape."""
    pressure: float = 0.0
    """npt: pressure, GPa."""
    pressure_relaxation: Annotated[float, Gt(0)] = 1000.0
    """npt: relaxation time of the pressure, fs."""
    compressibility: Annotated[float, Gt(0)] = 0.5
    """berendsen: compressibility, 1/GPa; water has 0.46, metals 0.01."""
    bias: Annotated[float, Ge(0)] = 0.0
    """Strength τ of a bias towards the unknown: dynamics on E − τ·σ; 0: none."""
    uncertainty_every: Annotated[int, Ge(1)] = 1
    """Steps between evaluations of the uncertainty."""
    seed: Annotated[int, Ge(0)] = 0
    """Of the first velocities and of the thermostat."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no dynamics."""
        for name in ("temperature", "timestep", "friction", "relaxation", "pressure_relaxation"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value}: must be above 0")
        if self.temperature > HOTTEST:
            raise ValueError(
                f"temperature={self.temperature:g}: above {HOTTEST:g} K no bonds are left to "
                "simulate; give the temperature in K"
            )
        if self.steps < 0 or self.uncertainty_every < 1:
            raise ValueError(
                f"steps={self.steps}, uncertainty_every={self.uncertainty_every}: give 0 or more, "
                "and 1 or more"
            )
        if not (math.isfinite(self.bias) and self.bias >= 0):
            raise ValueError(f"bias={self.bias}: τ is 0 or more; negative ones would avoid σ")
        if self.bias > 0 and self.ensemble == "npt":
            raise ValueError("bias with npt: the bias has no stress; use nvt or nve")


@dataclass(frozen=True, eq=False)
class Look:
    """One moment of a simulation."""

    step: int
    time: float  # fs
    energy: float  # potential energy, eV, without bias
    temperature: float  # K
    energy_std: float  # eV, total
    forces_std: float  # eV/Å, largest of any component
    risk: Risk | None  # of the stop rule, if there is one
    gap: Gap | None  # widest one of the distances; None where the potential knows none
    broken: bool  # whether the rule says to act
    atoms: Atoms  # as they are now; they move on
    results: dict[str, Any]  # of the calculator

    def snapshot(self) -> Atoms:
        """A copy with energy, forces, stress and all uncertainties, as extended XYZ holds them."""
        atoms: Atoms = self.atoms.copy()  # type: ignore[no-untyped-call]
        known = {k: self.results[k] for k in ("energy", "forces", "stress") if k in self.results}
        atoms.calc = SinglePointCalculator(atoms, **known)  # type: ignore[no-untyped-call]
        atoms.info |= {"step": self.step, "time_fs": self.time, "temperature": self.temperature}
        if self.risk is not None:
            atoms.info["risk"] = self.risk.probability
        if self.gap is not None:
            atoms.info["distance_gap"] = self.gap.size
        for name, value in self.results.items():
            if name == "forces_covariance":
                atoms.arrays[name] = value.reshape(-1, 9)
            elif "_" in name and name != "free_energy":
                kept: Any = atoms.arrays if name.startswith(("forces", "energies")) else atoms.info
                kept[name] = value
        return atoms


def simulate(
    potential: Potential, start: Frame, settings: DynamicsSettings, *, rule: StopRule | None = None
) -> Iterator[Look]:
    """Look at the start, every `uncertainty_every` steps, and at the end, until `rule` stops it.

    Raises `ExplodedError` where the potential can no longer be evaluated.
    """
    atoms: Any = frame_to_atoms(start)  # ASE has no types
    watch = Calculator(potential)
    # A closed form costs much more with uncertainties of forces than without.
    apart = settings.uncertainty_every > 1 and isinstance(potential.posterior, ClosedForm)
    move = Calculator(potential, uncertainty=False) if apart else watch
    atoms.calc = BiasedCalculator(move, strength=settings.bias) if settings.bias else move
    random = np.random.default_rng(settings.seed)
    thermalize_momenta(atoms, temperature_K=settings.temperature, rng=random)
    if len(atoms) > 1:
        Stationary(atoms)
    dynamics = _integrator(atoms, settings, random)
    watch.get_property("forces", atoms)
    if rule is not None:
        rule.check_distances(potential)
        rule.check_sigma(watch.results["forces_covariance"], potential)
    shape = None
    if potential.calibration is not None and potential.calibration.forces is not None:
        shape = potential.calibration.forces.shape
    reach = potential.model.cutoff
    seen = watch.neighbours.ends()
    company = has_company(len(atoms), seen)
    try:
        for _ in dynamics.irun(settings.steps):
            step = dynamics.nsteps
            if step % settings.uncertainty_every and step < settings.steps:
                continue
            watch.get_property("forces", atoms)
            covariance = watch.results["forces_covariance"]
            risk = None if rule is None else rule.risk(covariance, shape)
            gap, known = None, potential.distances
            if known is not None:
                gap = watch.neighbours.widest_gap(known)
            look = _look(atoms, watch.results, step, settings, risk, gap, rule)
            wrong = too_hot(look.temperature, settings.temperature)
            ends = watch.neighbours.ends()
            if ends is not seen:  # most steps have the pairs of the last one
                seen = ends
                wrong = wrong or in_pieces(has_company(len(atoms), ends), company, reach)
            if wrong:
                raise ValueError(wrong)
            yield look
            if look.broken and rule is not None and rule.action == "stop":
                return
    except ValueError as error:
        cause = str(error).split("; ")[0].removeprefix("atoms, frame 0: ")
        raise ExplodedError(
            f"step {dynamics.nsteps} at {settings.temperature:g} K: {cause}; "
            f"{remedy(settings.timestep)}"
        ) from error


def _integrator(atoms: Atoms, settings: DynamicsSettings, random: np.random.Generator) -> Any:
    step, temperature = settings.timestep * units.fs, settings.temperature
    relaxation = settings.relaxation * units.fs
    make: Any
    if settings.ensemble == "nve":
        make = VelocityVerlet
        return make(atoms, step)
    if settings.ensemble == "nvt" and settings.thermostat == "bussi":
        make = Bussi
        return make(atoms, step, temperature_K=temperature, taut=relaxation, rng=random)
    if settings.ensemble == "nvt":
        make, friction = Langevin, settings.friction / units.fs
        return make(
            atoms, step, temperature_K=temperature, friction=friction, fixcm=False, rng=random
        )
    if not atoms.pbc.all():
        raise ValueError(
            f"npt needs a cell periodic in all three directions, but pbc={atoms.pbc.tolist()}; "
            "use nvt"
        )
    pressure, slow = settings.pressure * units.GPa, settings.pressure_relaxation * units.fs
    common = {"temperature_K": temperature, "pressure_au": pressure}
    if settings.barostat == "berendsen":
        make, soft = NPTBerendsen, settings.compressibility / units.GPa
        return make(atoms, step, taut=relaxation, taup=slow, compressibility_au=soft, **common)
    make = MTKNPT
    return make(atoms, step, tdamp=relaxation, pdamp=slow, **common)


def _look(
    atoms: Any,
    results: dict[str, Any],
    step: int,
    settings: DynamicsSettings,
    risk: Risk | None,
    gap: Gap | None,
    rule: StopRule | None,
) -> Look:
    return Look(
        step=step,
        time=step * settings.timestep,
        energy=results["energy"],
        temperature=float(atoms.get_temperature()),
        energy_std=results["energy_uncertainty"],
        forces_std=float(results["forces_uncertainty"].max()),
        risk=risk,
        gap=gap,
        broken=rule is not None and risk is not None and rule.broken(risk, gap),
        atoms=atoms,
        results=results,
    )
