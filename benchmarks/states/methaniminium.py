"""Methaniminium: populations on learnt surfaces beside those of trajectories with PySCF itself.

    bayrace train benchmarks/states/methaniminium.yaml -s output=runs/methaniminium/mean
    bayrace train benchmarks/states/methaniminium.yaml -s output=runs/methaniminium/gap \
        -s data.energy_key=energy_soft_gap -s data.forces_key=forces_soft_gap
    bayrace hop runs/methaniminium/mean/model.bayrace runs/methaniminium/gap/model.bayrace \
        --start runs/methaniminium/starts.xyz --time 20 --timestep 0.25 --seed 16 \
        --dihedral 2,0,1,4 -o runs/methaniminium/hop
    python benchmarks/states/methaniminium.py gather runs/methaniminium
    python benchmarks/states/methaniminium.py compare runs/methaniminium/hop -o populations.png

The data and the reference are made by scripts/make_methaniminium.py, whose stages `starts` and
`reference` come before. `gather` writes methaniminium-reference.json beside this file, which is
committed, so that the comparison needs no PySCF. The first starts of the swarm are those of the
reference, with the same random numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayrace.report.figures import save
from bayrace.report.hopping import Curves, populations
from bayrace.workflow.hop import gather

REFERENCE = Path(__file__).with_name("methaniminium-reference.json")


def gather_reference(folder: Path) -> None:
    """States along the trajectories 0 to 19; −1 after the end of one that ended early."""
    files = [folder / f"trajectory-{number:03d}.npz" for number in range(20)]
    kept = [np.load(path) for path in files if path.exists()]
    times = max((trajectory["times"] for trajectory in kept), key=len)
    active = [
        [*trajectory["active"].tolist(), *[-1] * (len(times) - len(trajectory["active"]))]
        for trajectory in kept
    ]
    drift = [round(float(trajectory["drift"]), 4) for trajectory in kept]
    told = {"times_fs": times.round(6).tolist(), "active": active, "largest_drift_eV": drift}
    REFERENCE.write_text(json.dumps(told) + "\n", encoding="utf-8")
    print(f"{REFERENCE}: {len(active)} trajectories, largest drift {max(drift)} eV")


def shares(active: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of running trajectories in each state, and standard errors (K, 2); active is (K, T)."""
    running = np.maximum((active >= 0).sum(1), 1)[:, None]
    inside = (active[:, :, None] == np.arange(2)).sum(1) / running
    return inside, np.sqrt(inside * (1 - inside) / running)


def compare(swarm: Path, figure: Path | None) -> None:
    """Table and figure of the share in the upper state."""
    result = gather(sorted(swarm.glob("trajectories-*.npz")))
    told = json.loads(REFERENCE.read_text(encoding="utf-8"))
    times, active = np.array(told["times_fs"]), np.array(told["active"]).T
    ours, reference = (result.times, *shares(result.active)), (times, *shares(active))
    same = result.active[:, : active.shape[1]]
    matched = (result.times, *shares(same))
    print(f"share in the upper state: {active.shape[1]} trajectories with PySCF,")
    print(f"{same.shape[1]} on learnt surfaces from the same starts, and all of them")
    print("| time (fs) | PySCF | learnt, same starts | learnt, all | running of all |")
    print("|---|---|---|---|---|")
    for time in (4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20):
        cells = []
        for moments, share, error in (reference, matched, ours):
            row = int(np.argmin(np.abs(moments - time)))
            cells.append(f"{share[row, 1]:.2f} ± {error[row, 1]:.2f}")
        running = int((result.active[int(np.argmin(np.abs(result.times - time)))] >= 0).sum())
        print(f"| {time} | {' | '.join(cells)} | {running} |")
    print(f"learnt: {result.summary()}")
    if figure is not None:
        curves = {"PySCF": Curves(*reference), "learnt": Curves(*ours)}
        save(populations(curves), figure)


def main() -> None:
    """Gather, or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    stages = parser.add_subparsers(dest="stage", required=True)
    first = stages.add_parser("gather")
    first.add_argument("folder", type=Path)
    second = stages.add_parser("compare")
    second.add_argument("swarm", type=Path)
    second.add_argument("-o", "--output", type=Path, default=None)
    options = parser.parse_args()
    if options.stage == "gather":
        gather_reference(options.folder)
    else:
        compare(options.swarm, options.output)


if __name__ == "__main__":
    main()
