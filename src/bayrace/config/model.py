"""The section `model`: options of the kind of network that it names, `race` where it names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, Tag

from bayrace.config.docstrings import described
from bayrace.config.presets import fill_model
from bayrace.core.protocols import ModelOptions
from bayrace.models import MODELS

DEFAULT_KIND = "race"

TRAINABLE: dict[str, Any] = {
    name: described(vars(spec)["options"])
    for name, spec in MODELS.all().items()
    if vars(spec).get("options") is not None
}
"""Options of the networks that can be trained here, by name."""


def _kind(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("kind", DEFAULT_KIND)
    return getattr(value, "kind", DEFAULT_KIND)


def _section() -> Any:
    if len(TRAINABLE) == 1:
        return TRAINABLE[DEFAULT_KIND]
    members = tuple(Annotated[options, Tag(name)] for name, options in TRAINABLE.items())
    return Annotated[Union[members], Discriminator(_kind)]  # noqa: UP007 - made at run time


if TYPE_CHECKING:
    ModelConfig = ModelOptions
else:
    ModelConfig = Annotated[_section(), BeforeValidator(fill_model)]
