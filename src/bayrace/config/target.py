"""The section `target` of a configuration: what is learnt, where its labels are, and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from bayrace.config.section import Section
from bayrace.core.target import KNOWN, Pooling, Target


def named_target(raw: Any) -> Any:
    """`target: gap` is short for `target: {name: gap}`."""
    return {"name": raw} if isinstance(raw, str) else raw


def _fill_known(raw: Any) -> Any:
    """The unit and pooling of a target that has a known name."""
    if not isinstance(raw, Mapping):
        return raw
    known = KNOWN.get(str(raw.get("name", "energy")))
    if known is None:
        return raw
    return {"unit": known.unit, "pooling": known.pooling, **raw}


class TargetConfig(Section):
    """What is learnt of a structure: its energy, or another property, which has no forces."""

    name: str = Field(
        default="energy",
        min_length=1,
        max_length=60,
        description="energy, a property of QM9 (mu, alpha, homo, lumo, gap, r2, zpve, u0, u298, "
        "h298, g298, cv), or a name of your own with its unit and pooling.",
    )
    unit: str = Field(
        default="eV",
        min_length=1,
        max_length=60,
        description="Unit of the labels, for tables and axes; eV is shown as meV.",
    )
    key: str | None = Field(
        default=None, description="Key of the label in the files; null: the name."
    )
    pooling: Pooling = Field(
        default="sum",
        description="From atoms to the structure: sum (extensive), mean (intensive), norm (of a "
        "vector such as the dipole), second_moment (such as ⟨R²⟩).",
    )

    _fill = model_validator(mode="before")(_fill_known)

    @model_validator(mode="after")
    def _energy_is_a_sum(self) -> TargetConfig:
        if self.name == "energy" and (self.unit, self.pooling) != ("eV", "sum"):
            raise ValueError("the energy is a sum in eV; give another property another name")
        if self.name == "energy" and self.key is not None:
            raise ValueError("the key of the energy is data.energy_key")
        if self.name not in KNOWN and not {"unit", "pooling"} <= self.model_fields_set:
            raise ValueError(
                f"{self.name!r} is not a name we know; give its unit and its pooling too"
            )
        return self

    @property
    def label_key(self) -> str:
        """Of the labels of a property."""
        return self.key or self.name

    def build(self) -> Target:
        """As the network and everything downstream know it."""
        return Target(self.name, self.unit, self.pooling)


def target_loss(raw: Mapping[str, Any], *, preset: Any = None) -> dict[str, Any]:
    """A property has no forces, which the section `loss` need not say.

    `preset` is the kind of loss that the preset has.
    """
    filled = dict(raw)
    target, loss = named_target(raw.get("target", {})), raw.get("loss", {})
    both = isinstance(target, Mapping) and isinstance(loss, Mapping)
    if both and target.get("name", "energy") != "energy":
        pooling = _fill_known(target).get("pooling", "sum")
        noise = {} if pooling == "sum" else {"energy_noise": "mean_log"}
        kind = preset if preset in ("mse", "nll_e") else "nll_e"
        filled["loss"] = {"kind": kind, "forces": 0.0} | noise | dict(loss)
        filled["target"] = dict(target)
    return filled
