"""Whether what a file says of a posterior fits a network: names, shapes, types and numbers.

A file may be damaged, or made to do harm; its checksum says only that it is what was written. What
passes here can be predicted with: nothing is missing, and nothing asks for more memory than the
file itself does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayrace.core.protocols import Posterior

MOST_SAMPLES = 10_000
"""Of a prediction."""

_NUMBERS = (
    *("ess", "weight_decay", "alpha", "alpha_forces", "alpha_stress", "regularisation"),
    *("power", "ceiling", "energy_power", "energy_ceiling", "stress_scale"),
)
_QUANTITIES = ("energy", "forces", "stress")
_REALS = (torch.float32, torch.float64)
_ABSURD = 1e30  # weights, whose squares are no numbers in float32


class Group(NamedTuple):
    """Tensors of a posterior that are shaped like the weights."""

    prefix: str
    leading: int = 0  # dimensions in front of those of the weights
    least: float = -math.inf  # value
    finite: bool = True


class Sizes(NamedTuple):
    """What tensors beside the weights are measured by."""

    elements: int
    features: int  # of the last layer; 0 where it has no part


class Layout(NamedTuple):
    """Which tensors the file of a posterior holds."""

    groups: tuple[Group, ...]
    last_layer: bool = False  # also places and factors of a Gaussian over the last layer
    rest: Callable[[dict[str, Tensor], Sizes], None] = lambda *_: None  # takes what else there is


def check_stored(
    posterior: Posterior,
    layout: Layout | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    elements: int,
) -> None:
    """Refuse a posterior that is not one of weights with these shapes.

    Raises:
        ValueError: what is wrong, in words that follow the name of a file.
    """
    rest = dict(posterior.tensors())
    if layout is None:
        _check_finite(rest)
        _check_options(posterior.options())
        return
    types = set()
    for group in layout.groups:
        types |= {value.dtype for value in _grouped(rest, group, shapes)}
    if len(types) != 1 or not types <= set(_REALS):
        raise ValueError(f"weights are {_listed(types)}; all must be float32, or all float64")
    features = 0
    if layout.last_layer:
        features = _check_last_layer(rest, sum(math.prod(shape) for shape in shapes.values()))
    layout.rest(rest, Sizes(elements, features))
    _check_shifts(rest, elements, posterior.samples)
    if rest:
        raise ValueError(f"weights do not fit the model: missing [], unexpected {sorted(rest)}")
    _check_options(posterior.options())


def take_features(rest: dict[str, Tensor], sizes: Sizes) -> None:
    """Take out, checked, what a distance knows of the training atoms of each element."""
    expected = {
        "centre": (sizes.elements, sizes.features),
        "whitening": (sizes.elements, sizes.features, sizes.features),
        "forces_scale": (sizes.elements,),
        "novelty_gains": (sizes.elements, sizes.features),
    }
    for name, shape in expected.items():
        if name in ("forces_scale", "novelty_gains") and name not in rest:  # not modelled
            continue
        value = _taken(rest, name)
        if tuple(value.shape) != shape or value.dtype != torch.float64:
            raise ValueError(f"{name} is {value.dtype} of shape {tuple(value.shape)}, not {shape}")
        _check_finite({name: value})


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} is not finite everywhere")


def _grouped(
    rest: dict[str, Tensor], group: Group, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Tensor]:
    """Take the tensors of a group out of `rest`, checked."""
    missing = [name for name in shapes if group.prefix + name not in rest]
    if missing:
        given = sorted(rest.keys() - {group.prefix + name for name in shapes})
        raise ValueError(
            f"weights do not fit the model: missing {[group.prefix + n for n in sorted(missing)]}, "
            f"unexpected {given}"
        )
    counts = set()
    for name, shape in shapes.items():
        value = rest.pop(group.prefix + name)
        found = tuple(value.shape)
        if found[group.leading :] != shape or len(found) != len(shape) + group.leading:
            raise ValueError(
                f"weight {group.prefix}{name} has shape {found[group.leading :]}, the model needs "
                f"{shape}"
            )
        counts.add(found[: group.leading])
        if value.is_floating_point() and not _within(value, group):
            raise ValueError(f"weight {group.prefix}{name} is not finite everywhere, or absurd")
        yield value
    if len(counts) > 1 or any(0 in count for count in counts):
        raise ValueError(f"weights {group.prefix} are of {sorted(counts)} members")


def _within(value: Tensor, group: Group) -> bool:
    small = not group.finite or bool((value.abs() < _ABSURD).all())
    return small and bool((value >= group.least).all())


def _check_last_layer(rest: dict[str, Tensor], weights: int) -> int:
    """The number of its features."""
    places, factor = _taken(rest, "places"), _taken(rest, "factor")
    if places.dtype != torch.int64 or places.ndim != 1 or not len(places):
        raise ValueError(f"places are {places.dtype} of shape {tuple(places.shape)}")
    if not 0 <= int(places.min()) <= int(places.max()) < weights:
        raise ValueError(f"places reach beyond the {weights} weights")
    factors = [factor, *(rest.pop(name) for name in ("forces_factor",) if name in rest)]
    for each in factors:
        if each.dtype not in _REALS or each.ndim != 2 or len(each) != len(places):
            raise ValueError(f"a factor is {each.dtype} of shape {tuple(each.shape)}")
        if not bool(torch.isfinite(each).all()):
            raise ValueError("a factor is not finite everywhere")
    return len(places)


def _check_shifts(rest: dict[str, Tensor], elements: int, samples: int) -> None:
    if not any(name.startswith("shift/") for name in rest):
        return
    mean, drawn = _taken(rest, "shift/mean"), _taken(rest, "shift/samples")
    for value, shape in ((mean, (elements,)), (drawn, (len(drawn), elements))):
        if tuple(value.shape) != shape or value.dtype not in _REALS:
            raise ValueError(f"energy shifts are {value.dtype} of shape {tuple(value.shape)}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError("an energy shift is not finite")
    if len(drawn) < samples:
        raise ValueError(f"energy shifts of {len(drawn)} samples, but predictions use {samples}")


def _taken(rest: dict[str, Tensor], name: str) -> Tensor:
    if name not in rest:
        raise ValueError(f"weights do not fit the model: missing ['{name}'], unexpected []")
    return rest.pop(name)


def _check_options(options: Mapping[str, Any]) -> None:
    samples = options.get("samples", 1)
    if type(samples) is not int or not 1 <= samples <= MOST_SAMPLES:
        raise ValueError(f"samples={samples!r}: not a whole number from 1 to {MOST_SAMPLES}")
    if options.get("scaling", "paper") not in ("maddox", "paper"):
        raise ValueError(f"scaling={options['scaling']!r} is unknown")
    positive = {name: options[name] for name in _NUMBERS if options.get(name) is not None}
    noise = {k: v for k, v in options.get("found", {}).items() if str(k).endswith("_noise")}
    for name, value in options.get("noise", {}).items():
        if name not in _QUANTITIES:
            raise ValueError(f"noise of {name!r}: not one of {', '.join(_QUANTITIES)}")
        if not isinstance(value, float) or not 0 <= value < 1e30:
            raise ValueError(f"noise of {name}={value!r}: not a factor of a variance")
    for name, value in (positive | noise).items():
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 < value < 1e30:
            raise ValueError(f"{name}={value!r}: not a positive number")


def _listed(types: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(each).removeprefix("torch.") for each in types)) or "missing"
