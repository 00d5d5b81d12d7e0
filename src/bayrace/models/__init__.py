"""Networks: energies as pure functions of parameters and graph, and their derivatives.

A kind of model goes by the name of its specification (`bayrace.core.protocols.ModelSpec`), which is
all that a potential and its file know of it. Other packages add theirs by an entry point:

    [project.entry-points."bayrace.models"]
    mine = "my_package.spec:MySpec"
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which imports torch
    from bayrace.core.protocols import ModelSpec

GROUP = "bayrace.models"
"""Of the entry points of other packages."""

OWN = {
    "race": "bayrace.models.race.spec:RaceSpec",
    "sevennet": "bayrace.models.sevennet:SevenNetSpec",
    "chgnet": "bayrace.models.chgnet:ChgnetSpec",
    "mace": "bayrace.models.mace:MaceSpec",
}
"""Where our specifications are; each is imported when it is asked for."""


def register(spec: type[ModelSpec]) -> None:
    """Make a kind of model known for this process; an entry point does so for all."""
    known = _REGISTERED.get(spec.name, spec)
    if spec.name in OWN or known is not spec:
        raise ValueError(f"a model {spec.name!r} is known already; give yours another name")
    _REGISTERED[spec.name] = spec


def spec_class(name: str) -> type[ModelSpec]:
    """The specification that goes by a name in files."""
    if name in OWN:
        module, _, attribute = OWN[name].partition(":")
        own: type[ModelSpec] = getattr(importlib.import_module(module), attribute)
        return own
    if name in _REGISTERED:
        return _REGISTERED[name]
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        register(entry.load())
        if name in _REGISTERED:
            return _REGISTERED[name]
    raise ValueError(
        f"model {name!r} is unknown; there are {', '.join(model_names())}. Install the package "
        "that registers it, or import what calls bayrace.models.register"
    )


def model_names() -> list[str]:
    """Of all kinds of models that can be built here, sorted."""
    others = importlib.metadata.entry_points(group=GROUP)
    return sorted({*OWN, *_REGISTERED, *(entry.name for entry in others)})


_REGISTERED: dict[str, type[ModelSpec]] = {}
