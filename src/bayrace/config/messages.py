"""Validation errors in plain words: the dotted key, the value, what is valid, the nearest key."""

from __future__ import annotations

import difflib
import reprlib
from typing import Any

from pydantic import BaseModel, ValidationError

from bayrace.config.keys import walk
from bayrace.config.model import TRAINABLE
from bayrace.config.schema import Config

# What other programs call our keys; difflib cannot guess these.
_SYNONYMS = {
    "learning_rate": "train.lr",
    "epochs": "train.max_epochs",
    "num_epochs": "train.max_epochs",
    "batch": "train.batch_size",
    "optimizer": "train.optimiser",
    "scheduler": "train.schedule",
    "patience": "train.early_stopping",
    "ema_decay": "train.ema",
    "clip_grad": "train.max_gradient_norm",
    "max_grad_norm": "train.max_gradient_norm",
    "r_max": "model.cutoff",
    "r_cut": "model.cutoff",
    "rcut": "model.cutoff",
    "num_layers": "model.layers",
    "num_interactions": "model.layers",
    "hidden_irreps": "model.hidden",
    "lmax": "model.l_max",
    "max_ell": "model.l_max",
    "precision": "model.dtype",
    "default_dtype": "model.dtype",
    "energy_weight": "loss.energy",
    "forces_weight": "loss.forces",
    "force_weight": "loss.forces",
    "stress_weight": "loss.stress",
    "loss": "loss.kind",
    "e0s": "data.references",
    "train_file": "data.train",
    "valid_file": "data.valid",
    "valid_fraction": "data.valid",
    "test_file": "data.test",
}


def explain(error: ValidationError, root: type[BaseModel] = Config) -> list[str]:
    """One line for every wrong key, in the order of the configuration, which is a `root`."""
    lines: dict[str, str] = {}
    problems = [(*_dotted(each, root), each) for each in error.errors(include_url=False)]
    unfilled = any(key.rpartition(".")[2] == "preset" for key, _, _ in problems)
    for key, unknown, problem in problems:
        if unfilled and problem["type"] == "missing":
            continue  # the preset, if it were one, would have it
        if key not in lines:
            lines[key] = _unknown(key, root) if unknown else _wrong(key, problem, root)
        elif _reason(key, problem, root) not in lines[key]:  # another member of a union
            lines[key] += f", or {_reason(key, problem, root)}"
    return list(lines.values())


def known_keys(root: type[BaseModel] = Config) -> list[str]:
    """Every dotted key of a configuration."""
    return [key for key, _ in walk(root)]


def _dotted(problem: Any, root: type[BaseModel]) -> tuple[str, bool]:
    """The key a problem is about, without pydantic's union tags, and whether it is unknown."""
    unknown = problem["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    place = [str(part) for part in problem["loc"]]
    if len(TRAINABLE) > 1 and place[:1] == ["model"] and place[1:2] and place[1] in TRAINABLE:
        del place[1]  # the kind of network
    if unknown:
        return ".".join(place), True
    known = set(known_keys(root))
    for length in range(len(place), 0, -1):
        if ".".join(place[:length]) in known:
            return ".".join(place[:length]), False
    return ".".join(place) or "configuration", False


def _unknown(key: str, root: type[BaseModel]) -> str:
    near = _nearest(key, root)
    if near is not None:
        return f"{key}: unknown key; did you mean {near}?"
    section = key.rpartition(".")[0]
    inside = [known for known in known_keys(root) if known.rpartition(".")[0] == section]
    return f"{key}: unknown key; known here: {', '.join(inside)}"


def _nearest(key: str, root: type[BaseModel]) -> str | None:
    """The likeliest key: a synonym, a near spelling in the same section, one in any section."""
    section, _, name = key.rpartition(".")
    keys = known_keys(root)
    if _SYNONYMS.get(name.lower()) in keys:
        return _SYNONYMS[name.lower()]
    by_name = {known.rpartition(".")[2]: known for known in reversed(keys)}
    here = {known.rpartition(".")[2]: known for known in keys if _inside(known, section)}
    for names, likeness in ((here, 0.6), (by_name, 0.75)):
        matches = difflib.get_close_matches(name.lower(), names, n=1, cutoff=likeness)
        if matches:
            return names[matches[0]]
    return None


def _inside(key: str, section: str) -> bool:
    return key.rpartition(".")[0] == section


def _wrong(key: str, problem: Any, root: type[BaseModel]) -> str:
    if problem["type"] == "missing":
        return f"{key}: required and missing; add it to the file or give -s {key}=..."
    if problem["type"] == "value_error" and "." not in key:  # of a section as a whole
        return f"{key}: {_reason(key, problem, root)}"
    return f"{key}: {_shown(problem['input'])} is not valid; {_reason(key, problem, root)}"


def _shown(value: Any) -> str:
    """A value for a message, however large it is."""
    return _BRIEF.repr(value)


def _brief() -> reprlib.Repr:
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 200
    brief.maxlist = brief.maxtuple = brief.maxdict = 20
    brief.maxlevel = 4
    return brief


_BRIEF = _brief()


def _reason(key: str, problem: Any, root: type[BaseModel]) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] in ("string_pattern_mismatch", "predicate_failed"):
        return f"expected: {dict(walk(root))[key].removesuffix('.')}"
    if problem["type"] == "union_tag_invalid":
        return f"kinds of networks are {', '.join(TRAINABLE)}"
    if problem["type"] in ("model_type", "dataclass_type"):
        return "must be a section with keys of its own"
    return message.replace("Input should be", "must be")
