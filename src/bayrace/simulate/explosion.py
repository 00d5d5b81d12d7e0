"""When dynamics have gone wrong: one idea of it for every command that simulates.

Too hot for what was asked, or in pieces. Atoms that overlap, or numbers that are not finite, are
found where the potential is evaluated.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TOO_HOT = 20.0  # times the temperature that was asked for
HOTTEST = 1e5  # K; 9 eV for each atom, where there are no bonds to be learnt
USUAL_STEP = 2.0  # fs; longer ones fail with most atoms


def has_company(n_atoms: int, pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """(n,) whether an atom is in one of the pairs (2, p) of neighbours."""
    company = np.zeros(n_atoms, dtype=np.bool_)
    company[pairs] = True
    return company


def too_hot(temperature: float, asked: float) -> str | None:
    """What is wrong with a temperature, K."""
    if temperature <= TOO_HOT * asked:
        return None
    return f"the temperature is {temperature:.3g} K, atoms fly apart"


def in_pieces(
    now: npt.NDArray[np.bool_], before: npt.NDArray[np.bool_], reach: float
) -> str | None:
    """What is wrong if most atoms that had company `before`, within `reach` Å, have none `now`."""
    lost = before & ~now
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
