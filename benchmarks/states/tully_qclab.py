"""Fewest switches on Tully's models by QC Lab (pypi.org/project/qclab), a code of others.

    uv venv .venv-qclab && uv pip install --python .venv-qclab qclab==1.3.0
    .venv-qclab/bin/python benchmarks/states/tully_qclab.py --trajectories 2000

All trajectories begin at −10 bohr with the same momentum on the lower state and are counted once
all have left ±10 bohr. Prints the lines of QCLAB in tully_published.py. Needs nothing of bayrace.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from qclab import Simulation, functions
from qclab.algorithms import FewestSwitchesSurfaceHopping
from qclab.models import TullyProblemOne, TullyProblemThree, TullyProblemTwo

MASS, EDGE = 2000.0, 10.0
MODELS = {  # and the diabatic state that is the lower one on the left
    "simple_crossing": (TullyProblemOne, 0),
    "dual_crossing": (TullyProblemTwo, 0),
    "extended_coupling": (TullyProblemThree, 1),
}


def shares(name: str, momentum: float, *, trajectories: int, step: float) -> list[float]:
    """Reflected on the lower and upper state, transmitted on the lower and upper state."""
    kind, lower = MODELS[name]
    interval, steps = step * MASS / momentum, int(120 / step)
    simulation = Simulation(
        {
            "tmax": (steps + 2) * interval, "dt_update": interval, "dt_collect": interval,
            "num_trajs": trajectories, "batch_size": trajectories, "progress_bar": False,
        }
    )  # fmt: skip
    simulation.model = kind({"init_momentum": momentum, "init_position": -EDGE, "mass": MASS})
    simulation.algorithm = FewestSwitchesSurfaceHopping()
    simulation.initial_state["wf_db"] = np.eye(2, dtype=complex)[lower]
    simulation.model.initialize_constants()
    simulation.initialize_timesteps()
    algorithm, parameters = simulation.algorithm, {}
    state: dict[str, Any] = {"seed": np.arange(trajectories)}
    recipes = [algorithm.initialization_recipe, *[algorithm.update_recipe] * steps]
    mass, weight = np.full((1, 1), MASS), np.ones((1, 1))
    for simulation.t_ind, recipe in enumerate(recipes):
        state, parameters = algorithm.execute_recipe(simulation, state, parameters, recipe)
        x = functions.z_to_q(state["z"], mass, weight)[:, 0]
        p = functions.z_to_p(state["z"], mass, weight)[:, 0]
        if ((np.abs(x) > EDGE) & (x * p > 0)).all():
            break
    upper = np.asarray(state["act_surf_ind"]) == 1
    return [
        float(((x > 0) == right)[upper == top].sum()) / trajectories
        for right in (False, True)
        for top in (False, True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--step", type=float, default=0.02, help="bohr of a step, about")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--momenta", type=int, nargs="+", default=None)
    options = parser.parse_args()
    for name in options.models:
        usual = (20, 25, 30, 40, 50) if name == "dual_crossing" else (10, 15, 20, 25, 30)
        for momentum in options.momenta or usual:
            found = shares(name, momentum, trajectories=options.trajectories, step=options.step)
            cells = ", ".join(f"{share:.4f}" for share in found)
            print(f"{name} {momentum}: ({cells}),", flush=True)


if __name__ == "__main__":
    main()
