"""What a preset says about each section of the configuration; what the user says goes on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from bayrace.config.posteriors import named_kind, shallow_loss
from bayrace.config.target import target_loss
from bayrace.models.race.presets import PRESETS

Preset = Literal["tiny", "small", "medium", "qm9", "psb3", "rmd17", "3bpa", "obn25"]
PRESET_NAMES: tuple[str, ...] = get_args(Preset)
DEFAULT_PRESET = "small"


def preset_values(name: object, section: str) -> dict[str, Any]:
    """Values of one section of the configuration in a preset; empty if it is silent."""
    if not isinstance(name, str) or name not in PRESETS:
        return {}  # the validation of the preset's name says what is wrong
    return dict(PRESETS[name].get(section, {}))


def plain_values(name: object) -> dict[str, Any]:
    """What a preset says outside of sections."""
    values = PRESETS.get(name, {}) if isinstance(name, str) else {}
    return {key: value for key, value in values.items() if not isinstance(value, Mapping)}


def fill_model(raw: Any) -> Any:
    """The raw model section with everything left out taken from its preset."""
    if not isinstance(raw, Mapping):
        return raw
    return preset_values(raw.get("preset", DEFAULT_PRESET), "model") | dict(raw)


def fill_run(raw: Any) -> Any:
    """The raw configuration with the other sections of its preset beneath the user's."""
    if not isinstance(raw, Mapping):
        return raw
    model = raw.get("model", {})
    named = isinstance(model, Mapping)
    name = model.get("preset", DEFAULT_PRESET) if named else getattr(model, "preset", None)
    filled = target_loss(shallow_loss(raw))
    for section in ("loss", "train"):
        given = filled.get(section, {})
        if isinstance(given, Mapping):
            filled[section] = preset_values(name, section) | dict(given)
    filled = plain_values(name) | filled
    posterior = named_kind(filled.get("posterior", {}))
    if isinstance(posterior, Mapping):
        filled["posterior"] = _beneath(preset_values(name, "posterior"), posterior)
    return filled


def _beneath(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given mapping over those values, key by key in its inner mappings too."""
    merged = {**values, **given}
    for key, inner in values.items():
        over = given.get(key, {})
        if isinstance(inner, Mapping) and isinstance(over, Mapping):
            merged[key] = _beneath(inner, over)
    return merged
