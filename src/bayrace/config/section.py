"""What all parts of the configuration share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

LARGEST = 2**62
"""Of a whole number: what torch and numpy count with."""


class Section(BaseModel):
    """A part of the configuration: frozen, and unknown keys are refused.

    Options of methods are frozen dataclasses, which pydantic checks in the same way: limits are
    annotations, and descriptions the docstrings of attributes.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="after")
    def _countable(self) -> Self:
        """Refuse whole numbers that nothing could be done with, before something tries."""
        for name, value in self:
            if any(abs(number) > LARGEST for number in _whole_numbers(value)):
                raise ValueError(f"{name} has a number above {LARGEST}; give a smaller one")
        return self


def _whole_numbers(value: Any) -> list[int]:
    if is_dataclass(value):
        inner = [getattr(value, field.name) for field in fields(value)]
        return [number for each in inner for number in _whole_numbers(each)]
    values = value if isinstance(value, tuple | list) else (value,)
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]
