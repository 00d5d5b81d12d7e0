"""Networks: energies as pure functions of parameters and graph, and their derivatives.

A kind of model goes by the name of its specification (`bayrace.core.protocols.ModelSpec`), which is
all that a potential and its file know of it. One that can be trained also has `options`, a frozen
dataclass whose fields are the section `model` of the configuration, and `of`, which makes the
specification of them. Other packages add theirs by an entry point:

    [project.entry-points."bayrace.models"]
    mine = "my_package.spec:MySpec"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayrace.core.registry import Registry

if TYPE_CHECKING:  # which imports torch
    from bayrace.core.protocols import ModelSpec

MODELS: Registry[type[ModelSpec]] = Registry(
    "model", package="bayrace.models", group="bayrace.models"
)
"""By the name in files and configurations."""


def register(spec: type[ModelSpec]) -> None:
    """Make a kind of model known for this process; an entry point does so for all."""
    MODELS.register(spec)


def spec_class(name: str) -> type[ModelSpec]:
    """The specification that goes by a name in files."""
    return MODELS.find(name)


def model_names() -> list[str]:
    """Of all kinds of models that can be built here, sorted."""
    return list(MODELS)
