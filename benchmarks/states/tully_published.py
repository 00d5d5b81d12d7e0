"""Tully's models: our fewest switches beside the shares of other codes.

    python benchmarks/states/tully_published.py --trajectories 4000

QCLAB are by QC Lab 1.3.0 (pypi.org/project/qclab), which we ran (tully_qclab.py beside this file).
ZHU are published in github.com/yonghao-zhu/Tully_FSSH (commit e6fc01b), of the simple crossing, by
its Python (FSSH.py/run/momentum-prob.txt) and its Julia (FSSH.jl/run/log). Trajectories of both
begin at −10 bohr with the same momentum.

ZHANG are published in github.com/zhang-changwei/SurfaceHoppingDemo (MIT; result/sh*.txt, commit
4bba8a3), of packets: positions around −5 bohr with the standard deviation 10/k, momenta with k/20,
counted as they leave a box of ±8 bohr; of the extended coupling they must have begun further to the
left, where the coupling has ended, and we take −10 and ±12. That code turns the sign of the energy
that pays for a hop (`_velocity_rescaling` in sh.py: B² − 4A(E_a − E_b) for B² + 4A(E_a − E_b)), so
that trajectories gain energy as they hop upwards: its table has 0.157 on the upper state of the
simple crossing at momentum 7, where there is not enough energy. `--turned` turns the sign here too.

All theirs are of 2000 trajectories. Tully's paper (J. Chem. Phys. 93, 1061, 1990) has curves.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayrace.simulate.hopping import models
from bayrace.simulate.hopping import swarm as swarms
from bayrace.simulate.hopping.swarm import HopSettings, begin, run

Array = NDArray[np.float64]
Shares = tuple[float, float, float, float]
"""Reflected on the lower and upper state, transmitted on the lower and upper state."""

THEIRS = 2000  # trajectories
SIMPLE, DUAL, EXTENDED = (models.simple_crossing, models.dual_crossing, models.extended_coupling)
QCLAB: dict[models.Diabats, dict[int, Shares]] = {
    SIMPLE: {
        10: (0.0, 0.0, 0.8295, 0.1705),
        15: (0.0, 0.0, 0.6755, 0.3245),
        20: (0.0, 0.0, 0.4920, 0.5080),
        25: (0.0, 0.0, 0.3670, 0.6330),
        30: (0.0, 0.0, 0.2630, 0.7370),
    },
    DUAL: {
        20: (0.0, 0.0, 0.9600, 0.0400),
        25: (0.0, 0.0, 0.6835, 0.3165),
        30: (0.0, 0.0, 0.3260, 0.6740),
        40: (0.0, 0.0, 0.6855, 0.3145),
        50: (0.0, 0.0, 0.9980, 0.0020),
    },
    EXTENDED: {
        10: (0.2915, 0.0095, 0.6990, 0.0),
        15: (0.0030, 0.3670, 0.6300, 0.0),
        20: (0.3090, 0.0870, 0.6040, 0.0),
        25: (0.0270, 0.3940, 0.5790, 0.0),
        30: (0.0, 0.0, 0.5660, 0.4340),
    },
}
ZHU: dict[models.Diabats, dict[int, Shares]] = {  # Python and Julia, averaged
    SIMPLE: {
        8: (0.0830, 0.0, 0.9170, 0.0),
        10: (0.0, 0.0, 0.8460, 0.1540),
        15: (0.0, 0.0, 0.6715, 0.3285),
        20: (0.0, 0.0, 0.49075, 0.50925),
        25: (0.0, 0.0, 0.35825, 0.64175),
    },
}
ZHANG: dict[models.Diabats, dict[int, Shares]] = {
    SIMPLE: {
        10: (0.0020, 0.0, 0.7840, 0.2140),
        15: (0.0, 0.0, 0.6415, 0.3585),
        20: (0.0, 0.0, 0.4840, 0.5160),
        25: (0.0, 0.0, 0.3625, 0.6375),
        30: (0.0, 0.0, 0.2840, 0.7160),
    },
    DUAL: {
        20: (0.0, 0.0, 0.9455, 0.0545),
        25: (0.0, 0.0, 0.5940, 0.4060),
        30: (0.0, 0.0, 0.3515, 0.6485),
        40: (0.0, 0.0, 0.7685, 0.2315),
        50: (0.0, 0.0, 0.9815, 0.0185),
    },
    EXTENDED: {
        10: (0.1115, 0.1815, 0.7065, 0.0005),
        15: (0.1225, 0.2490, 0.6270, 0.0015),
        20: (0.1430, 0.2460, 0.6085, 0.0025),
        25: (0.1235, 0.2890, 0.5785, 0.0090),
        30: (0.0120, 0.0160, 0.5875, 0.3845),
    },
}


class Start(NamedTuple):
    """Where trajectories come from, and where they are counted."""

    position: float  # bohr
    box: float  # bohr
    spread: bool  # a wave packet's positions and momenta, or all the same


POINT, PACKET = Start(-10.0, 10.0, spread=False), Start(-5.0, 8.0, spread=True)
FAR_PACKET = Start(-10.0, 12.0, spread=True)


def shares(
    diabats: models.Diabats,
    momentum: float,
    start: Start,
    *,
    trajectories: int,
    step: float = 0.02,  # bohr, about
    seed: int = 0,
) -> tuple[Shares, float]:
    """Shares of our trajectories, and the largest drift of their total energy (hartree)."""
    model, masses = models.Model(diabats), np.array([models.MASS])
    random, shape = np.random.default_rng([seed, int(momentum)]), (trajectories, 1)
    width = 10 / momentum if start.spread else 0.0
    at = start.position + width * random.standard_normal(shape)
    momenta = momentum + width * momentum**2 / 200 * random.standard_normal(shape)
    settings = HopSettings(
        method="fssh", timestep=step * models.MASS / momentum, steps=int(200 / step), hbar=1.0,
        substeps=4, decoherence="none", seed=seed,
    )  # fmt: skip
    swarm = begin(model, at, momenta / models.MASS, masses, np.zeros(trajectories, dtype=int))
    # reflected or transmitted, and the state, when they left the box for the first time
    where = np.where(np.abs(at[:, 0]) > start.box, np.where(at[:, 0] > 0, 2, 0), -1)
    drift = 0.0
    for swarm in run(model, swarm, masses, settings):  # noqa: B020
        x, v = swarm.positions[:, 0], swarm.velocities[:, 0]
        left = (np.abs(x) > start.box) & (x * v > 0) & (where < 0)
        where[left] = np.where(x[left] > 0, 2, 0) + swarm.active[left]
        drift = max(drift, float(np.abs(swarm.total_energy(masses) - swarm.start_energy).max()))
        if (where >= 0).all():
            break
    found = [float((where == place).mean()) for place in range(4)]
    return (found[0], found[1], found[2], found[3]), drift


def turn_sign() -> None:
    """Let hops gain the energy that they should cost, as in the code of ZHANG."""
    right = swarms.rescaled

    def turned(velocities: Array, masses: Array, cost: Array, *rest: Any, **more: Any) -> Any:
        return right(velocities, masses, -cost, *rest, **more)

    swarms.rescaled = turned


def main() -> None:
    """Print all of them, and the largest differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--step", type=float, default=0.02, help="bohr of a step, about")
    parser.add_argument("--turned", action="store_true", help="ZHANG alone, with its sign")
    options = parser.parse_args()
    tables = {"qclab": (QCLAB, POINT), "zhu": (ZHU, POINT), "zhang": (ZHANG, PACKET)}
    if options.turned:
        turn_sign()
        tables = {"zhang": (ZHANG, PACKET)}
    print("reflected lower, upper; transmitted lower, upper: theirs | ours | largest difference")
    worst: dict[str, float] = dict.fromkeys(tables, 0.0)
    for name, (table, start) in tables.items():
        for diabats, rows in table.items():
            far = start is PACKET and diabats is EXTENDED
            for momentum, theirs in rows.items():
                ours, drift = shares(
                    diabats, momentum, FAR_PACKET if far else start,
                    trajectories=options.trajectories, step=options.step,
                )  # fmt: skip
                off = float(np.abs(np.subtract(ours, theirs)).max())
                worst[name] = max(worst[name], off)
                cells = [", ".join(f"{share:.3f}" for share in each) for each in (theirs, ours)]
                print(
                    f"{name:5s} {diabats.__name__:17s} k={momentum} {cells[0]} | {cells[1]} | "
                    f"{off:.3f}  drift {drift:.0e}",
                    flush=True,
                )
    error = 0.5 * math.sqrt(1 / THEIRS + 1 / options.trajectories)
    print(f"largest: {worst}; standard error of a difference, at most {error:.3f}")


if __name__ == "__main__":
    main()
