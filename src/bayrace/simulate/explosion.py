"""When dynamics have gone wrong: one idea of it for every command that simulates.

Too hot for what was asked, or in pieces. Atoms that overlap, or numbers that are not finite, are
found where the potential is evaluated.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bayrace.data.frame import Frame
from bayrace.data.neighbours import neighbour_list

TOO_HOT = 20.0  # times the temperature that was asked for
HOTTEST = 1e5  # K; 9 eV for each atom, where there are no bonds to be learnt
USUAL_STEP = 2.0  # fs; longer ones fail with most atoms


def has_company(frame: Frame, reach: float) -> npt.NDArray[np.bool_]:
    """(n,) whether an atom has another one closer than `reach`, Å."""
    edges, _ = neighbour_list(frame.positions, frame.cell, frame.pbc, reach)
    return np.isin(np.arange(len(frame.numbers)), edges[0])


def too_hot(temperature: float, asked: float) -> str | None:
    """What is wrong with a temperature, K."""
    if temperature <= TOO_HOT * asked:
        return None
    return f"the temperature is {temperature:.3g} K, atoms fly apart"


def in_pieces(frame: Frame, before: npt.NDArray[np.bool_], reach: float) -> str | None:
    """What is wrong if most atoms that had company `before` have lost all of it."""
    lost = before & ~has_company(frame, reach)
    if not before.any() or 2 * lost.sum() <= before.sum():
        return None
    return (
        f"{lost.sum()} of {before.sum()} atoms have no other within {reach:g} Å any more, atoms "
        "fly apart"
    )


def remedy(timestep: float) -> str:
    """What may help."""
    if timestep > USUAL_STEP:
        return (
            f"the time step of {timestep:g} fs is long: 0.5 to 1 fs are usual with hydrogen, up to "
            f"{USUAL_STEP:g} fs without"
        )
    return (
        "use a smaller time step or a lower temperature, or check whether the potential was "
        "trained for such structures"
    )
