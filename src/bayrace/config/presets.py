"""What a preset says about each section of the configuration; what the user says goes on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from bayrace.config.target import target_loss
from bayrace.models.race.options import Preset
from bayrace.models.race.presets import PRESETS
from bayrace.posterior import POSTERIORS

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
    """The raw model section with everything left out taken from its preset, for our networks."""
    if not isinstance(raw, Mapping) or raw.get("kind", "race") != "race":
        return raw
    return preset_values(raw.get("preset", DEFAULT_PRESET), "model") | dict(raw)


def fill_run(raw: Any) -> Any:
    """The raw configuration with the other sections of its preset beneath the user's."""
    if not isinstance(raw, Mapping):
        return raw
    model = raw.get("model", {})
    named = isinstance(model, Mapping)
    name = model.get("preset", DEFAULT_PRESET) if named else getattr(model, "preset", None)
    kind = preset_values(name, "loss").get("kind")
    filled = target_loss(own_loss(raw), preset=kind)
    for section in ("loss", "train"):
        given = filled.get(section, {})
        if isinstance(given, Mapping):
            filled[section] = preset_values(name, section) | dict(given)
    filled = plain_values(name) | filled
    posterior = named_kind(filled.get("posterior", {}))
    if isinstance(posterior, Mapping):
        filled["posterior"] = _beneath(preset_values(name, "posterior"), posterior)
    return filled


def named_kind(raw: Any) -> Any:
    """`posterior: swag` as the section {kind: swag}."""
    return {"kind": raw} if isinstance(raw, str) else raw


def own_loss(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Some posteriors have a loss of their own, which need not be named."""
    filled = dict(raw)
    posterior, loss = named_kind(raw.get("posterior", {})), raw.get("loss", {})
    if not isinstance(posterior, Mapping) or not isinstance(loss, Mapping):
        return filled
    kind = posterior.get("kind")
    needed = POSTERIORS.find(str(kind)).loss if kind in POSTERIORS else None
    if needed is not None:
        filled["loss"] = {"kind": needed} | dict(loss)
    return filled


def _beneath(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given mapping over those values, key by key in its inner mappings too."""
    merged = {**values, **given}
    for key, inner in values.items():
        over = given.get(key, {})
        if isinstance(inner, Mapping) and isinstance(over, Mapping):
            merged[key] = _beneath(inner, over)
    return merged
