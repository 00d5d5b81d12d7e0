"""The data sets that come with bayrace, made by scripts/make_embedded_data.py and its neighbours.

Small enough to learn in minutes and real enough to be worth it: xTB dynamics of a molecule and of
a molecular crystal, each with hot frames kept apart as an out-of-distribution set, and two
electronic states of a molecule along hopping trajectories (scripts/make_methaniminium.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from bayrace.data.frame import Frame, LabelKeys
from bayrace.data.read import read_frames

EMBEDDED: Mapping[str, str] = MappingProxyType(
    {
        "ethanol-train": "400 frames of ethanol at 300 K, GFN2-xTB energies and forces",
        "ethanol-valid": "50 frames of ethanol at 300 K from other trajectories",
        "ethanol-test": "100 frames of ethanol at 300 K from other trajectories",
        "ethanol-hot": "100 frames of ethanol at 1000 K, out of distribution",
        "ethanol-atoms": "free H, C and O atoms, GFN2-xTB energies",
        "ammonia-train": "100 cells of solid ammonia at 150 K, GFN1-xTB with stress",
        "ammonia-valid": "20 cells of solid ammonia at 150 K from other trajectories",
        "ammonia-test": "30 cells of solid ammonia at 150 K from other trajectories",
        "ammonia-hot": "40 cells of ammonia at 450 K, out of distribution",
        "ammonia-atoms": "free H and N atoms, GFN1-xTB energies",
        "methaniminium-train": "395 frames of twisted CH2NH2+, SA-2-CASSCF(2,2), two states",
        "methaniminium-valid": "74 frames of twisted CH2NH2+ from other trajectories",
        "methaniminium-test": "120 frames of twisted CH2NH2+ from other trajectories",
    }
)
"""Names of the embedded data sets and what they hold."""


def embedded(name: str) -> Path:
    """Path of an embedded data set: a gzipped extended-XYZ file that ASE reads as it is."""
    if name not in EMBEDDED:
        near = get_close_matches(name, EMBEDDED, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(EMBEDDED)}"
        raise ValueError(f"{name!r} is no embedded data set; {hint}")
    return Path(str(files("bayrace.data") / "embedded" / f"{name}.xyz.gz"))


def embedded_frames(name: str) -> list[Frame]:
    """Frames of an embedded data set, energies in eV, forces in eV/Å, stress in eV/Å³.

    Those of two states come without labels: `bayrace.simulate.hopping.labelled` reads them.
    """
    keys = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)
    return read_frames(embedded(name), keys=keys, config_weights={})
