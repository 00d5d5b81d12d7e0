"""Types and sizes in the JSON of a network's specification, which may come from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bayrace.nn.irreps import parse_irreps

MOST_CHANNELS = 4096
MOST_SCALE = 1e6  # of forces, eV/Å
ORGANIC = "organic"  # name of the weights in the package
_HEAVIEST = 118  # atomic number
_MOST_DEGREE = 9
_NUMBERS: dict[str, tuple[int, int]] = {  # smallest and largest
    "layers": (1, 32),
    "features": (1, MOST_CHANNELS),
    "l_max": (0, _MOST_DEGREE),
    "radial_basis": (1, MOST_CHANNELS),
    "envelope_power": (2, 100),
    "radial_knots": (0, 100_000),
    "readout_hidden": (1, MOST_CHANNELS),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "neighbour_norm": ("sqrt", "mean"),
    "activation": ("identity", "relu"),
    "pretrained": ("", ORGANIC),
}
_NOISE: dict[str, tuple[str, ...]] = {
    "kind": ("none", "energy", "joint", "shallow"),
    "energy": ("extensive", "mean_log"),
    "covariance": ("equivariant", "cholesky"),
}


def check_types(values: Mapping[str, Any]) -> None:
    """Refuse values of other types than a specification has, and sizes that no network has.

    Raises:
        ValueError: names the key, the value and what it should be.
    """
    for name, (least, most) in _NUMBERS.items():
        _whole(name, values[name], least, most)
    for number in values["elements"]:
        _whole("elements", number, 1, _HEAVIEST)
    for width in values["radial_hidden"]:
        _whole("radial_hidden", width, 1, MOST_CHANNELS)
    if len(values["radial_hidden"]) > _NUMBERS["layers"][1]:
        raise ValueError(f"radial_hidden has {len(values['radial_hidden'])} layers")
    for name in ("cutoff", "mean_neighbours", "scale"):
        real(name, values[name], least=1e-12, most=MOST_SCALE)
    for value in (*values["shift"], *(x for row in values["shortest"] for x in row)):
        real("shift and shortest", value, least=-1e9, most=1e9)
    for name, choices in _CHOICES.items():
        _one_of(name, values[name], choices)
    for name in ("gate", "self_contraction", "pair_radial"):
        _one_of(name, values[name], (False, True))
    _check_hidden(values["hidden"])
    _check_noise(values["noise"])
    target = values["target"]
    if not isinstance(target, Mapping) or set(target) != {"name", "unit", "pooling"}:
        raise ValueError(f"target={_short(target)}: not a name, a unit and a pooling")


def real(name: str, value: Any, *, least: float, most: float) -> float:
    """A finite number within bounds."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not least <= value <= most or not math.isfinite(value):
        raise ValueError(f"{name}={_short(value)}: not a number from {least:g} to {most:g}")
    return float(value)


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}={_short(value)}: not a whole number from {least} to {most}")


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if type(value) is not type(choices[0]) or value not in choices:
        raise ValueError(f"{name}={_short(value)}: not one of {', '.join(map(str, choices))}")


def _check_hidden(text: Any) -> None:
    if not isinstance(text, str) or len(text) > 1000:
        raise ValueError(f"hidden={_short(text)}: not irreps such as '32x0e+32x1o'")
    for irrep, count in parse_irreps(text).items():
        _whole(f"channels of {irrep}", count, 1, MOST_CHANNELS)
        _whole("degree", irrep.l, 0, _MOST_DEGREE)


def _check_noise(noise: Any) -> None:
    if not isinstance(noise, Mapping):
        raise ValueError(f"noise={_short(noise)}: not a mapping")
    for name, choices in _NOISE.items():
        _one_of(name, noise[name], choices)
    _one_of("stress", noise["stress"], (False, True))
    _whole("members", noise.get("members", 0), 0, MOST_CHANNELS)


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
