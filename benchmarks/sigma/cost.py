"""What the default σ and the whole stop rule cost, in turns in one run, by processor time.

    python benchmarks/sigma/cost.py

A network of preset `small` with random weights, since cost does not depend on them, on a stack of
benzene (27 atoms) and on silicon (216). For each: energy and forces without any uncertainty (a
point, squared errors), with noise heads, and with the default posterior; then steps of dynamics as
`bayrace md` makes them, with the whole rule, against plain dynamics in ASE without uncertainty.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta

from bayrace import Calculator
from bayrace.config import make_config
from bayrace.config.build import lambdas, model_spec
from bayrace.data.dataset import Dataset
from bayrace.data.distances import Distances
from bayrace.data.frame import Frame, LabelKeys, frame_from_atoms
from bayrace.evaluate.metrics.cost import interleaved_times
from bayrace.posterior import distance
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, simulate
from bayrace.simulate.stop import StopRule
from bayrace.system.process import tune_process

STEPS = 20  # of dynamics in one timing
TIMESTEP = 0.005  # fs, a hundredth of the usual: random weights must not tear the structure apart


def structures() -> dict[str, Atoms]:
    """27 and 216 atoms."""
    chain = molecule("C6H6")
    for k in range(1, 3):
        other = molecule("C6H6")
        other.translate([0.0, 0.0, 3.6 * k])
        chain += other
    chain = chain[:27]
    silicon = bulk("Si", cubic=True).repeat((3, 3, 3))
    for atoms in (chain, silicon):
        atoms.rattle(0.05, seed=0)
    return {"27 atoms": chain, "216 atoms": silicon}


def labelled(atoms: Atoms, seed: int) -> Frame:
    """The structure, rattled, with labels of no meaning."""
    random, moved = np.random.default_rng(seed), atoms.copy()
    moved.rattle(0.02, seed=seed)
    labels = {"energy": random.normal(), "forces": random.normal(size=(len(atoms), 3))}
    moved.calc = SinglePointCalculator(moved, **labels)
    return frame_from_atoms(moved, keys=LabelKeys(None, None, None, None, None))


def potentials(atoms: Atoms, preset: str) -> dict[str, Potential]:
    """Without noise, with noise heads, and with the default posterior."""
    frames = [labelled(atoms, seed) for seed in range(4)]
    elements = tuple(sorted({int(z) for z in atoms.numbers}))
    references = dict.fromkeys(elements, 0.0)
    made = {}
    for name, kind in (("point, mse", "mse"), ("point, nll_jef", "nll_jef")):
        config = make_config(
            {"data": {"train": "-"}, "loss": {"kind": kind}, "model": {"preset": preset}}
        )
        data = Dataset(frames, elements=elements, cutoff=config.model.cutoff, references=references)
        model = model_spec(config, data).build()
        known = lambdas(config.loss, data)
        made[name] = Potential(
            spec=model.spec,
            posterior=Point(model.init(0)),
            references=references,
            lambdas=known,
            statistics={},
            config={},
            fingerprint="",
            distances=Distances.of(data),
        )
    fitted = distance.fit(
        model, model.init(0), data, data, options=config.posterior.method, lambdas=known
    )
    made["distance"] = replace(made["point, nll_jef"], posterior=fitted)
    return made


def plain(potential: Potential, atoms: Atoms) -> Callable[[], None]:
    """Steps of ASE's Langevin dynamics without any uncertainty."""
    moving = atoms.copy()
    moving.calc = Calculator(potential, uncertainty=False)
    thermalize_momenta(moving, 300, rng=np.random.default_rng(0))
    dynamics = Langevin(
        moving, TIMESTEP * units.fs, temperature_K=300, friction=0.01 / units.fs, fixcm=False
    )
    return lambda: dynamics.run(STEPS)


def watched(potential: Potential, atoms: Atoms) -> Callable[[], None]:
    """The same through `simulate`, with the whole rule at every step, never stopping."""
    settings = DynamicsSettings("nvt", 300.0, 10**9, timestep=TIMESTEP)
    rule = StopRule(0.5, 0.05, action="record", gap=0.05)
    start = frame_from_atoms(atoms, keys=None)
    looks = simulate(potential, start, settings, rule=rule)

    def steps() -> None:
        for _ in range(STEPS):
            next(looks)

    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--preset", default="small")
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(1)
    for size, atoms in structures().items():
        made = potentials(atoms, options.preset)
        frame = frame_from_atoms(atoms, keys=None)
        calls: dict[str, Callable[[], object]] = {}
        for name, potential in made.items():
            data = Dataset(
                [frame],
                elements=potential.elements,
                cutoff=potential.model.cutoff,
                references=potential.references,
            )
            batch = data.batch([0], dtype=potential.dtype)[0]
            calls[f"energy and forces, {name}"] = lambda p=potential, b=batch: p.predict_batch(b)
        calls[f"{STEPS} steps, plain"] = plain(made["point, nll_jef"], atoms)
        calls[f"{STEPS} steps, whole rule"] = watched(made["distance"], atoms)
        times = interleaved_times(
            list(calls.values()), rounds=options.rounds, clock=time.process_time
        )
        found = dict(zip(calls, times.min(axis=0).tolist(), strict=True))
        print(f"{size}: least of {options.rounds} calls in turns, one thread")
        for name, seconds in found.items():
            base = f"{STEPS} steps, plain" if "steps" in name else "energy and forces, point, mse"
            print(f"  {name:40} {1000 * seconds:9.2f} ms   {seconds / found[base]:.2f}")


if __name__ == "__main__":
    main()
