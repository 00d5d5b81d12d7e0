"""Tully's models: fewest switches and SHXF beside wave packets by the split operator.

    python benchmarks/states/tully.py --trajectories 1000

Shares transmitted on the lower and upper state, and reflected on both.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from bayrace.simulate.hopping.models import (
    MASS,
    Diabats,
    Model,
    dual_crossing,
    extended_coupling,
    simple_crossing,
)
from bayrace.simulate.hopping.swarm import HopSettings, begin, run

Array = NDArray[np.float64]
MOMENTA = {
    simple_crossing: (8, 10, 15, 20, 30),
    dual_crossing: (20, 25, 30, 40, 50),
    extended_coupling: (10, 15, 20, 25, 30),
}
START = -10.0  # bohr


def hopping(diabats: Diabats, momentum: float, trajectories: int, **options: object) -> Array:
    """The four shares of trajectories, and the largest drift of the total energy."""
    model, masses, velocity = Model(diabats), np.array([MASS]), momentum / MASS
    settings = HopSettings(
        timestep=0.01 / velocity, steps=12_000, hbar=1.0, substeps=4, decoherence="none",
        width=0.1, **options,
    )  # fmt: skip
    shape = (trajectories, 1)
    last = begin(
        model, np.full(shape, START), np.full(shape, velocity), masses, np.zeros(trajectories, int)
    )
    drift = 0.0
    for swarm in run(model, last, masses, settings):
        last = swarm
        drift = max(drift, float(np.abs(last.total_energy(masses) - last.start_energy).max()))
        x, v = last.positions[:, 0], last.velocities[:, 0]
        if (((x > -START) & (v > 0)) | ((x < START) & (v < 0))).all():
            break
    right = last.positions[:, 0] > 0
    shares = [(side & (last.active == s)).mean() for side in (right, ~right) for s in (0, 1)]
    return np.array([*shares, drift])


def exact(diabats: Diabats, momentum: float, *, half: float = 100.0, points: int = 4096) -> Array:
    """The four shares of a Gaussian wave packet of width 20/k, as Tully's (split operator)."""
    step = 4.0  # atomic units of time
    x = np.linspace(-half, half, points, endpoint=False)
    waves = 2 * np.pi * np.fft.fftfreq(points, x[1] - x[0])
    (a, b, c), _ = diabats(x)
    difference, root = (a - b) / 2, np.sqrt(((a - b) / 2) ** 2 + c**2)
    phase = np.exp(-1j * (a + b) / 2 * step / 2)
    cosine, sine = np.cos(root * step / 2), np.sin(root * step / 2) / root
    turn = phase * np.array(
        [[cosine - 1j * difference * sine, -1j * c * sine],
         [-1j * c * sine, cosine + 1j * difference * sine]]
    )  # fmt: skip
    kinetic = np.exp(-1j * waves**2 / (2 * MASS) * step)
    angle = np.arctan2(2 * c, a - b) / 2
    lower = np.array([-np.sin(angle), np.cos(angle)])
    upper = np.array([np.cos(angle), np.sin(angle)])
    packet = np.exp(-(((x - START) * momentum / 20) ** 2) + 1j * momentum * x)
    state = lower * packet / np.linalg.norm(packet)
    steps = int(2.2 * abs(START) * MASS / momentum / step)
    for done in range(steps):
        state = np.einsum("ijx,jx->ix", turn, state)
        state = np.fft.ifft(kinetic * np.fft.fft(state, axis=1), axis=1)
        state = np.einsum("ijx,jx->ix", turn, state)
        density = (np.abs(state) ** 2).sum(0)
        if done > 0.75 * steps and density[np.abs(x) < 5].sum() < 1e-3:
            break
    found = [np.abs((each * state).sum(0)) ** 2 for each in (lower, upper)]
    return np.array([f[side].sum() for side in (x > 0, x <= 0) for f in found])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=1000)
    options = parser.parse_args()
    for diabats, momenta in MOMENTA.items():
        for momentum in momenta:
            rows = {"exact": exact(diabats, momentum)}
            for method in ("fssh", "shxf"):
                rows[method] = hopping(diabats, momentum, options.trajectories, method=method)
            for name, row in rows.items():
                drift = f"  drift {row[4]:.1e}" if len(row) > 4 else ""
                shares = "  ".join(f"{share:.3f}" for share in row[:4])
                print(
                    f"{diabats.__name__:18s} k={momentum:<3d} {name:6s} {shares}{drift}", flush=True
                )


if __name__ == "__main__":
    main()
