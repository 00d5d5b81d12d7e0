"""Configuration of oracles and of labelling: the sections `oracle` and `label`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from bayrace.config.choice import Choice, choice, section_name
from bayrace.config.fields import Seconds
from bayrace.config.load import ConfigError, make_section, read_yaml
from bayrace.config.options import keys_from, made_of
from bayrace.config.section import Section
from bayrace.label.label import LabelSettings
from bayrace.label.oracle import Oracle
from bayrace.label.oracles import ORACLES

if TYPE_CHECKING:
    OracleConfig = Choice
    LabelConfig = LabelSettings
else:
    OracleConfig = choice("OracleConfig", ORACLES, default="gfn2")
    LabelConfig = create_model(
        "LabelConfig",
        __base__=Section,
        __doc__="How labels are computed.",
        **keys_from(LabelSettings, types={"timeout": Seconds | None}),
    )


def make_oracle(config: OracleConfig, *, timeout: float | None = None) -> Oracle:
    """The oracle of a configuration; `timeout` (s) ends programs that have none of their own."""
    oracle: Any = config.method
    if timeout is not None and getattr(oracle, "timeout", timeout) is None:
        oracle = replace(oracle, timeout=timeout)
    made: Oracle = oracle
    return made


def label_settings(config: LabelConfig) -> LabelSettings:
    """What labelling is told."""
    return made_of(LabelSettings, config)


def parse_oracle(text: str, arguments: Mapping[str, Any]) -> OracleConfig:
    """The oracle that a command line names.

    A kind (gfn2, dft), a YAML file with the section `oracle`, an import path (tblite.ase:TBLite),
    or a potential (model.bayrace). `arguments` are keys of the kind's section, or of the
    calculator.
    """
    if text.endswith((".yaml", ".yml")):
        raw = read_yaml(Path(text))
        section = raw.get("oracle", raw)
        if arguments:
            raise ConfigError(f"{text}: takes no arguments here; write {dict(arguments)} into it")
        return make_section(OracleConfig, section, source=text)
    source = f"oracle {text}"
    if text.endswith(".bayrace"):
        return _section("teacher", {"model": text} | dict(arguments), source)
    if ":" in text:
        return _section("ase", {"calculator": text, "arguments": dict(arguments)}, source)
    if text not in ORACLES:
        raise ConfigError(
            f"{source}: unknown; use one of {', '.join(ORACLES)}, an import path such as "
            "tblite.ase:TBLite, a potential (.bayrace), or a YAML file"
        )
    return _section(text, dict(arguments), source)


def _section(kind: str, values: Mapping[str, Any], source: str) -> OracleConfig:
    name = section_name(ORACLES.find(kind))
    given = {name: values} if values else {}
    return make_section(OracleConfig, {"kind": kind, **given}, source=source)
