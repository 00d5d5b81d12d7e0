"""Figures of the paper and of those it quotes, as plain numbers.

Energies in meV and forces in meV/Å; QM9 in meV where energies, else in the units of the targets.
"""

from __future__ import annotations

Pair = tuple[float, float]
"""Of energies and of forces."""

QM9 = {  # MAE of RACE, by our names of the targets
    "alpha": 0.048,
    "gap": 64.0,
    "homo": 39.0,
    "lumo": 32.0,
    "mu": 0.027,
    "cv": 0.023,
    "g298": 8.22,
    "h298": 5.89,
    "r2": 0.311,
    "u298": 5.99,
    "u0": 5.61,
    "zpve": 1.15,
}

THREE_BPA: dict[str, tuple[Pair, Pair, Pair]] = {  # RMSE at 300, 600 and 1200 K
    "RACE": ((3.4, 12.1), (11.7, 31.8), (37.5, 115.3)),
    "RACE-Ensemble": ((2.9, 10.2), (11.1, 30.4), (37.7, 119.2)),
    "DE-E": ((17.5, 52.7), (43.7, 98.0), (171.9, 232.8)),
    "DE-JEF": ((5.0, 14.8), (14.6, 37.0), (51.1, 120.8)),
    "LA": ((4.8, 18.2), (15.3, 51.0), (60.8, 171.8)),
    "MACE": ((3.0, 8.8), (9.7, 21.8), (29.8, 62.0)),
    "NequIP": ((3.3, 10.8), (11.2, 26.4), (38.5, 76.2)),
    "Allegro": ((3.8, 13.0), (12.1, 29.2), (42.6, 83.0)),
}
TEMPERATURES = ("300K", "600K", "1200K")
"""Names of the test sets of 3BPA, in our recipe too."""

RMD17: dict[str, dict[str, Pair]] = {  # MAE
    "aspirin": {
        "RACE": (3.3, 9.6),
        "DE-JEF": (3.7, 9.5),
        "MACE": (2.2, 6.6),
        "GotenNet": (1.6, 5.7),
    },
    "ethanol": {"RACE": (0.8, 3.6), "DE-JEF": (1.4, 4.4), "MACE": (0.4, 2.1)},
}
MOLECULES = (
    "aspirin",
    "azobenzene",
    "benzene",
    "ethanol",
    "malonaldehyde",
    "naphthalene",
    "paracetamol",
    "salicylic",
    "toluene",
    "uracil",
)

OBN25 = {"MVE": 0.54, "DE": 1.00, "SWAG": 0.58, "IVON": 1.00, "LLPR": 0.71}
"""AUROC of liquid against solid."""
